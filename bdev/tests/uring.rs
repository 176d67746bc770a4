//! The uring device on real files: geometry, errors that name the remedy, misaligned buffers,
//! truncation, a full queue, cancellation, and waking a sleeper.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bdev::testing::{Driver, wait_readable};
use bdev::uring::{UringBdev, UringOptions};
use bdev::{Bdev, IoError, Op, OpKind, SubmitError};
use reactors::time::Time;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// A folder on a real file system, so that O_DIRECT means something, and a file in it.
fn file(len_bytes: u64) -> (TempDir, PathBuf) {
    let folder = tempfile::Builder::new().prefix("bdev-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(len_bytes).unwrap();
    (folder, path)
}

fn open(path: &Path) -> UringBdev {
    UringBdev::open("u0", path, &UringOptions::default()).unwrap()
}

fn refusal(path: &Path, options: &UringOptions) -> String {
    let error = UringBdev::open("u0", path, options).map(|_| ()).unwrap_err();
    error.to_string().replace(path.to_str().unwrap(), "PATH")
}

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| rng.u8(..)).collect()
}

/// Repeats `look` until it is true.
fn until(mut look: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if look() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("it never came");
}

#[test]
fn what_is_written_is_in_the_file() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 8);
    let bytes = pattern(65536, 1);
    driver.write(4096, &bytes).unwrap();
    assert_eq!(driver.read(4096, 65536).unwrap(), bytes);
    driver.run(Op::Flush, 0, 0).unwrap();
    driver.run(Op::Write { fua: true }, 512, 512).unwrap();
    let content = fs::read(&path).unwrap();
    assert_eq!(content[4096..][..65536], bytes);
    assert_eq!(content[512..1024], bytes[..512]);
    let stats = device.stats();
    assert_eq!((stats.of(OpKind::Write).bytes, stats.of(OpKind::Read).ops), (65536 + 512, 1));
}

#[test]
fn geometry_follows_the_file() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let geometry = device.geometry();
    assert_eq!((geometry.block_bytes, geometry.blocks, geometry.read_only), (512, 2048, false));
    assert!(geometry.write_cache && geometry.write_zeroes);
    assert_eq!(device.backing(), Some(fs::canonicalize(&path).unwrap().as_path()));
    let again = open(&path);
    assert_eq!(device.uuid(), again.uuid(), "identity survives a restart");
    let options = UringOptions { block_bytes: Some(4096), ..UringOptions::default() };
    let large = UringBdev::open("u1", &path, &options).unwrap().geometry();
    assert_eq!((large.block_bytes, large.blocks, large.physical_block_exponent), (4096, 256, 0));
}

#[test]
fn files_that_cannot_be_served_are_refused_in_words() {
    let (folder, path) = file(0);
    let options = UringOptions::default();
    assert_eq!(refusal(&path, &options), "PATH: its size is zero; give it at least one block");
    File::options().write(true).open(&path).unwrap().set_len(1000).unwrap();
    assert_eq!(
        refusal(&path, &options),
        "PATH: its size of 1000 bytes is no multiple of the block size of 512; make it 512 or 1024 bytes"
    );
    let odd = UringOptions { block_bytes: Some(1024), ..UringOptions::default() };
    assert_eq!(refusal(&path, &odd), "PATH: a block size of 1024 bytes; use 512 or 4096");
    assert_eq!(
        refusal(folder.path(), &options),
        "PATH: it is a directory; give a regular file or a block device"
    );
    assert_eq!(
        refusal(Path::new("/dev/null"), &options),
        "PATH: it is a character device; give a regular file or a block device"
    );
    assert_eq!(
        refusal(&folder.path().join("missing"), &options),
        "PATH: there is no such file; create it first, e.g. with truncate -s 1G"
    );
}

#[test]
fn a_file_without_write_permission_is_an_error_unless_read_only_is_asked_for() {
    let (_folder, path) = file(MIB);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    // Root writes whatever the mode says, so it needs a file that even root cannot write.
    if rustix::process::geteuid().is_root() {
        let running = std::env::current_exe().unwrap();
        let busy =
            UringBdev::open("u0", &running, &UringOptions::default()).map(|_| ()).unwrap_err().to_string();
        assert!(
            busy.ends_with("it is a program that runs; serve a copy of it, or serve it read-only (,ro)"),
            "{busy}"
        );
    } else {
        let why = refusal(&path, &UringOptions::default());
        assert!(why.contains("cannot be opened for writing") && why.contains(",ro"), "{why}");
    }
    let device =
        UringBdev::open("u0", &path, &UringOptions { read_only: true, ..UringOptions::default() }).unwrap();
    let mut driver = Driver::open(&device, 4);
    assert!(device.geometry().read_only);
    assert_eq!(driver.read(0, 512).unwrap(), [0; 512]);
    for op in [Op::Write { fua: false }, Op::Unmap, Op::WriteZeroes] {
        assert_eq!(driver.run(op, 0, 512), Err(IoError::ReadOnly));
    }
    driver.run(Op::Flush, 0, 0).unwrap();
}

#[test]
fn buffers_of_any_alignment_are_moved_rightly() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 32);
    let bytes = pattern(400 << 10, 2);
    // Larger than a bounce buffer, more of them than there are bounce buffers, all odd.
    for shift in [1, 68, 511, 513] {
        driver.region().write(shift, &bytes).unwrap();
        driver.try_submit_at(Op::Write { fua: false }, 512, bytes.len() as u64, shift).unwrap();
        assert_eq!(driver.wait_some()[0].result, Ok(()));
        driver.region().fill(0, bytes.len() + 1024, 0xee).unwrap();
        driver.try_submit_at(Op::Read, 512, bytes.len() as u64, shift + 2).unwrap();
        assert_eq!(driver.wait_some()[0].result, Ok(()));
        let mut back = vec![0; bytes.len()];
        driver.region().read(shift + 2, &mut back).unwrap();
        assert!(back == bytes, "shift {shift}");
    }
    let ids: Vec<_> = (0..32_u64)
        .map(|n| driver.try_submit_at(Op::Read, 512 + n * 4096, 4096, 7 + n as usize * 4096).unwrap())
        .collect();
    let mut seen = 0;
    while seen < ids.len() {
        seen += driver.wait_some().iter().inspect(|completion| assert_eq!(completion.result, Ok(()))).count();
    }
    let mut back = vec![0; 32 * 4096];
    driver.region().read(7, &mut back).unwrap();
    assert!(back == bytes[..32 * 4096]);
}

#[test]
fn unmap_and_write_zeroes_give_zeroes_and_holes() {
    for options in [UringOptions::default(), UringOptions { buffered: true, ..UringOptions::default() }] {
        let (_folder, path) = file(MIB);
        let device = UringBdev::open("u0", &path, &options).unwrap();
        let mut driver = Driver::open(&device, 4);
        let bytes = pattern(256 << 10, 3);
        driver.write(0, &bytes).unwrap();
        driver.run(Op::WriteZeroes, 1024, 100 << 10).unwrap();
        if device.geometry().unmap {
            driver.run(Op::Unmap, 128 << 10, 64 << 10).unwrap();
        }
        let mut expect = bytes.clone();
        expect[1024..][..100 << 10].fill(0);
        if device.geometry().unmap {
            expect[128 << 10..][..64 << 10].fill(0);
        }
        assert!(driver.read(0, 256 << 10).unwrap() == expect);
        assert_eq!(fs::metadata(&path).unwrap().len(), MIB, "the size stays");
    }
}

#[test]
fn a_file_truncated_while_served_fails_beyond_its_end_until_it_is_rescanned() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 4);
    let handle = OpenOptions::new().write(true).open(&path).unwrap();
    driver.write(0, &[1; 4096]).unwrap();
    handle.set_len(MIB / 2 + 512).unwrap();
    assert_eq!(driver.read(MIB - 4096, 4096), Err(IoError::Truncated));
    assert_eq!(driver.read(MIB / 2, 4096), Err(IoError::Truncated), "partly there is not there");
    assert_eq!(driver.write(MIB - 4096, &[2; 4096]), Err(IoError::Truncated), "a write must not grow it");
    assert_eq!(driver.run(Op::Unmap, MIB - 4096, 4096), Err(IoError::Truncated));
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB / 2 + 512);
    assert_eq!(driver.read(0, 4096).unwrap(), [1; 4096], "what is there still works");
    driver.run(Op::Flush, 0, 0).unwrap();
    assert_eq!(device.generation(), 1, "shrunk");
    assert_eq!(device.geometry().len_bytes(), MIB, "its size is what was promised all the time");
    handle.set_len(MIB).unwrap();
    look_many_times(&device, &mut driver);
    assert_eq!(driver.read(MIB - 4096, 4096), Err(IoError::Truncated), "what was there is lost all the same");
    assert_eq!(driver.write(MIB - 4096, &[2; 4096]), Err(IoError::Truncated));
    assert_eq!(device.generation(), 1);
    assert_eq!(device.rescan().unwrap().len_bytes(), MIB);
    assert_eq!(device.generation(), 2, "whole again, by an administrator's word");
    assert_eq!(driver.read(MIB - 4096, 4096).unwrap(), [0; 4096]);
    driver.write(MIB - 4096, &[2; 4096]).unwrap();
}

/// Lets the queue and the control plane see all that they can of the file.
fn look_many_times(device: &UringBdev, driver: &mut Driver) {
    for _ in 0..5 {
        driver.advance(Duration::from_secs(1));
        driver.poll();
        driver.read(0, 512).unwrap();
        device.check_backing();
    }
}

#[test]
fn a_write_that_grows_a_truncated_file_again_hides_nothing() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 4);
    let handle = OpenOptions::new().write(true).open(&path).unwrap();
    driver.write(0, &pattern(MIB as usize, 5)).unwrap();
    handle.set_len(MIB / 4).unwrap();
    device.check_backing();
    // As a write does that the kernel had when the file was cut.
    std::os::unix::fs::FileExt::write_at(&handle, &[2; 4096], MIB / 2).unwrap();
    look_many_times(&device, &mut driver);
    for at in [MIB / 4, MIB / 2, MIB - 4096] {
        assert_eq!(driver.read(at, 4096), Err(IoError::Truncated), "{at}");
        assert_eq!(driver.write(at, &[3; 4096]), Err(IoError::Truncated), "{at}");
        assert_eq!(driver.run(Op::WriteZeroes, at, 4096), Err(IoError::Truncated), "{at}");
    }
    assert_eq!(
        driver.read(MIB / 4 - 4096, 4096).unwrap(),
        pattern(MIB as usize, 5)[MIB as usize / 4 - 4096..][..4096]
    );
    assert_eq!(device.generation(), 1, "cut once");
    assert_eq!(device.rescan().unwrap().len_bytes(), MIB / 2 + 4096);
    assert_eq!(driver.read(MIB / 2, 4096).unwrap(), [2; 4096]);
    assert_eq!(driver.try_submit(Op::Read, MIB - 4096, 4096), Err(SubmitError::Invalid), "it is smaller now");
}

#[test]
fn a_write_alone_notices_the_truncation_in_time() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 4);
    driver.write(0, &[1; 512]).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB / 2).unwrap();
    driver.advance(Duration::from_secs(1));
    until(|| {
        driver.write(0, &[1; 512]).unwrap();
        driver.run(Op::Unmap, MIB - 512, 512) == Err(IoError::Truncated)
    });
    assert_eq!(driver.write(MIB - 512, &[2; 512]), Err(IoError::Truncated));
    assert_eq!(fs::metadata(&path).unwrap().len(), MIB / 2, "it was not grown");
}

#[test]
fn rescan_takes_the_new_size_over() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 4);
    let handle = OpenOptions::new().write(true).open(&path).unwrap();
    handle.set_len(2 * MIB).unwrap();
    assert_eq!(
        driver.try_submit(Op::Read, MIB, 512),
        Err(SubmitError::Invalid),
        "not before it is asked for"
    );
    assert_eq!(device.rescan().unwrap().blocks, 4096);
    assert_eq!(device.generation(), 1);
    driver.write(2 * MIB - 512, &[9; 512]).unwrap();
    handle.set_len(MIB).unwrap();
    assert_eq!(driver.read(2 * MIB - 512, 512), Err(IoError::Truncated));
    assert_eq!(device.rescan().unwrap().blocks, 2048);
    assert_eq!(driver.try_submit(Op::Read, MIB, 512), Err(SubmitError::Invalid));
    assert_eq!(
        (device.rescan().unwrap().blocks, device.generation()),
        (2048, 3),
        "found short, then taken over; nothing new, nothing counted"
    );
    handle.set_len(100).unwrap();
    assert!(device.rescan().unwrap_err().to_string().contains("no multiple"));
    assert_eq!(device.generation(), 3);
}

#[test]
fn an_idle_file_that_shrinks_is_noticed_by_who_looks() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    device.check_backing();
    assert_eq!(device.generation(), 0);
    OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB / 2).unwrap();
    device.check_backing();
    device.check_backing();
    assert_eq!((device.generation(), device.geometry().len_bytes()), (1, MIB));
    assert_eq!(Driver::open(&device, 1).read(MIB - 512, 512), Err(IoError::Truncated));
}

#[test]
fn a_file_that_was_renamed_is_served_and_not_mistaken_for_another() {
    let (folder, path) = file(MIB);
    let device = open(&path);
    fs::rename(&path, folder.path().join("other name")).unwrap();
    device.check_backing();
    assert_eq!(device.rescan().unwrap().len_bytes(), MIB, "renamed is not replaced");
    File::create(&path).unwrap().set_len(2 * MIB).unwrap();
    let why = device.rescan().unwrap_err().to_string();
    assert!(
        why.ends_with(
            "disk: another file lies there now; delete the bdev and create it anew to serve that one"
        ),
        "{why}"
    );
    assert_eq!((device.generation(), device.geometry().len_bytes()), (0, MIB));
    assert!(Driver::open(&device, 1).read(0, 512).is_ok());
}

#[test]
fn a_file_that_was_replaced_fails() {
    let (folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 1);
    fs::remove_file(&path).unwrap();
    device.check_backing();
    assert_eq!(driver.read(0, 512).unwrap(), [0; 512], "unlinked is not replaced");
    let other = folder.path().join("other");
    File::create(&other).unwrap().set_len(MIB).unwrap();
    fs::rename(&other, &path).unwrap();
    device.check_backing();
    device.check_backing();
    assert_eq!((device.generation(), device.geometry().len_bytes()), (1, MIB));
    assert_eq!(driver.read(0, 512), Err(IoError::Truncated));
    assert_eq!(driver.write(0, &[1; 512]), Err(IoError::Truncated));
    // The look at the size that the queue has the kernel take finds the old file, and heals nothing.
    for _ in 0..5 {
        driver.advance(Duration::from_secs(1));
        driver.poll();
    }
    assert_eq!(driver.read(0, 512), Err(IoError::Truncated));
    assert!(device.rescan().is_err());
}

#[test]
fn a_full_queue_says_so_and_loses_nothing() {
    let (_folder, path) = file(4 * MIB);
    let device = open(&path);
    // Deeper than the submission queue, so that part of it waits for a second system call.
    let mut driver = Driver::open(&device, 1000);
    for n in 0..1000 {
        driver.try_submit_at(Op::Read, n * 512, 512, n as usize * 512).unwrap();
    }
    assert_eq!(driver.try_submit(Op::Read, 0, 512), Err(SubmitError::Full));
    assert_eq!(driver.queue().in_flight(), 1000);
    let mut ids = Vec::new();
    while driver.queue().in_flight() > 0 {
        ids.extend(driver.wait_some().iter().map(|completion| (completion.id.0, completion.result)));
    }
    ids.sort_by_key(|&(id, _)| id);
    assert_eq!(ids, (0..1000).map(|id| (id, Ok(()))).collect::<Vec<_>>());
    driver.read(0, 512).unwrap();
}

#[test]
fn completions_beyond_the_callers_room_wait() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut queue = device.open_queue(8).unwrap();
    let region = reactors::memory::Region::heap(4096);
    let region = queue.register(&region).unwrap();
    for n in 0..8 {
        let io = bdev::Io {
            id: bdev::IoId(n),
            op: Op::Read,
            offset_bytes: 0,
            len_bytes: 512,
            region,
            region_offset: n as usize * 512,
        };
        queue.submit(io).unwrap();
    }
    let mut room = Vec::with_capacity(3);
    assert_eq!(room.capacity(), 3);
    let mut seen = 0;
    for turn in 0..10_000 {
        room.clear();
        queue.poll(reactors::time::Time::from_nanos(turn), &mut room);
        assert!(room.len() <= 3);
        seen += room.len();
        if seen == 8 {
            return;
        }
        wait_readable(queue.wait_fd().unwrap(), Duration::from_millis(1));
    }
    panic!("{seen} of 8 completions");
}

#[test]
fn a_completion_wakes_a_sleeper_through_wait_fd() {
    let (_folder, path) = file(64 * MIB);
    let device = UringBdev::open("u0", &path, &UringOptions::default()).unwrap();
    let mut driver = Driver::open(&device, 4);
    let mut slept = 0;
    for round in 0..20 {
        // A flush always goes through a worker of the kernel, so it cannot be done at once.
        driver.write(round * 4096, &[1; 4096]).unwrap();
        driver.try_submit(Op::Flush, 0, 0).unwrap();
        // Woken for nothing is allowed; slept through is not.
        while driver.poll().is_empty() {
            if driver.queue().next_deadline() == reactors::time::Time::NEVER {
                let woken = wait_readable(driver.queue().wait_fd().unwrap(), Duration::from_secs(10));
                assert!(woken, "round {round}: the completion did not make the descriptor readable");
                slept += 1;
            }
        }
    }
    assert!(slept > 0, "no flush ever took long enough to sleep");
}

#[test]
fn queues_of_a_thread_share_a_ring_and_its_regions() {
    let (_folder, path) = file(MIB);
    let (_other_folder, other_path) = file(MIB);
    let (device, other) = (open(&path), open(&other_path));
    let mut first = device.open_queue(8).unwrap();
    let mut second = other.open_queue(8).unwrap();
    let region = reactors::memory::Region::heap(8192);
    let id = first.register(&region).unwrap();
    assert_eq!(second.register(&region).unwrap(), id);
    let io = |n: u64, op, region_offset| bdev::Io {
        id: bdev::IoId(n),
        op,
        offset_bytes: 0,
        len_bytes: 4096,
        region: id,
        region_offset,
    };
    region.fill(0, 4096, 5).unwrap();
    first.submit(io(1, Op::Write { fua: false }, 0)).unwrap();
    second.submit(io(1, Op::Read, 4096)).unwrap();
    let (mut from_first, mut from_second) = (Vec::with_capacity(8), Vec::with_capacity(8));
    for turn in 0..10_000 {
        // Only the first enters the kernel when it finds both to hand over.
        first.poll(reactors::time::Time::from_nanos(turn), &mut from_first);
        second.poll(reactors::time::Time::from_nanos(turn), &mut from_second);
        if first.in_flight() + second.in_flight() == 0 {
            break;
        }
        wait_readable(first.wait_fd().unwrap(), Duration::from_millis(1));
    }
    assert_eq!((from_first.len(), from_second.len()), (1, 1), "same ids, each to its own queue");
    assert_eq!(fs::read(&path).unwrap()[..4096], [5; 4096]);
    assert!(region.with_bytes(4096, 4096, |bytes| bytes.iter().all(|&byte| byte == 0)).unwrap());
    drop(first);
    second.submit(io(2, Op::Flush, 0)).unwrap();
}

#[test]
fn more_queues_than_a_ring_holds_get_another_ring() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    // Deeper together than one ring, and more than there are places in one.
    let mut drivers: Vec<Driver> = [3000, 3000].iter().map(|&depth| Driver::open(&device, depth)).collect();
    drivers.extend((0..70).map(|_| Driver::open(&device, 2)));
    for (n, driver) in drivers.iter_mut().enumerate() {
        driver.write(n as u64 * 512, &[n as u8; 512]).unwrap();
    }
    drivers.rotate_left(1);
    for (n, driver) in drivers.iter_mut().enumerate() {
        assert_eq!(driver.read(n as u64 * 512, 512).unwrap(), [n as u8; 512]);
    }
    let error = device.open_queue(5000).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "u0: a queue of 5000 operations; 1 to 4096 are possible");
    assert!(device.open_queue(0).is_err());
}

#[test]
fn threads_drive_one_file_side_by_side() {
    let (_folder, path) = file(4 * MIB);
    let device = open(&path);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let device = &device;
            scope.spawn(move || {
                let mut driver = Driver::open(device, 16);
                let mut rng = fastrand::Rng::with_seed(thread);
                let mut expected = vec![0; MIB as usize];
                for round in 1..60_u8 {
                    let blocks = rng.u64(1..64);
                    let block = rng.u64(0..MIB / 512 - blocks);
                    let (at, len) = ((block * 512) as usize, (blocks * 512) as usize);
                    driver.write(thread * MIB + block * 512, &vec![round; len]).unwrap();
                    expected[at..at + len].fill(round);
                    let start = rng.usize(0..MIB as usize / 1024) * 512;
                    assert!(
                        driver.read(thread * MIB + start as u64, 65536).unwrap()
                            == expected[start..start + 65536]
                    );
                }
            });
        }
    });
    let stats = device.stats();
    assert_eq!((stats.of(OpKind::Write).ops, stats.of(OpKind::Read).ops, stats.errors()), (236, 236, 0));
}

#[test]
fn zeroes_are_written_where_there_is_no_zero_range() {
    // tmpfs punches holes and knows no FALLOC_FL_ZERO_RANGE.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = folder.path().join("disk");
    File::create(&path).unwrap().set_len(MIB).unwrap();
    let device = open(&path);
    let mut driver = Driver::open(&device, 4);
    driver.write(0, &[3; 4096]).unwrap();
    driver.run(Op::WriteZeroes, 0, 2048).unwrap();
    let mut bytes = [0; 4096];
    File::open(&path).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes[..2048].to_vec(), bytes[2048..].to_vec()), (vec![0; 2048], vec![3; 2048]));
}

#[test]
fn dropping_a_queue_with_io_in_flight_is_harmless() {
    let (_folder, path) = file(16 * MIB);
    let device = open(&path);
    for round in 0..5 {
        let mut driver = Driver::open(&device, 256);
        for n in 0..200 {
            driver.try_submit_at(Op::Read, n * 4096, 4096, n as usize * 4096).unwrap();
        }
        if round % 2 == 0 {
            driver.poll();
        }
        driver.try_submit(Op::Flush, 0, 0).unwrap();
        drop(driver);
    }
    assert_eq!(Driver::open(&device, 4).read(0, 512).unwrap(), [0; 512]);
}

#[test]
fn cancelling_before_the_kernel_has_it_takes_effect() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 4);
    driver.region().fill(0, 4096, 7).unwrap();
    let write = driver.try_submit(Op::Write { fua: false }, 0, 4096).unwrap();
    let keep = driver.try_submit(Op::Write { fua: false }, 8192, 4096).unwrap();
    driver.queue().cancel(write);
    driver.queue().cancel(bdev::IoId(99));
    let mut results = Vec::new();
    while driver.queue().in_flight() > 0 {
        results.extend(driver.wait_some().iter().map(|completion| (completion.id, completion.result)));
    }
    results.sort_by_key(|&(id, _)| id.0);
    assert_eq!(results, [(write, Err(IoError::Cancelled)), (keep, Ok(()))]);
    let content = fs::read(&path).unwrap();
    assert_eq!((content[0], content[8192]), (0, 7));
    assert_eq!(device.stats().of(OpKind::Write).cancelled, 1);
}

/// A file that is nowhere but in memory, and a path that opens it.
fn file_in_memory(len_bytes: u64) -> (File, PathBuf) {
    let memfd = rustix::fs::memfd_create("disk", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(memfd);
    file.set_len(len_bytes).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (file, path)
}

#[test]
fn reads_of_a_file_in_memory_are_done_in_the_turn_that_takes_them() {
    let (file, path) = file_in_memory(4 * MIB);
    let device = open(&path);
    let mut driver = Driver::open(&device, 64);
    let bytes = pattern(MIB as usize, 8);
    driver.write(0, &bytes).unwrap();
    assert_eq!(driver.read(0, 4096).unwrap(), bytes[..4096]);
    assert_eq!(driver.read(4096 + 512, 65536).unwrap(), bytes[4096 + 512..][..65536]);
    assert_eq!(driver.read(MIB, 512).unwrap(), [0; 512], "a hole");
    // More than one turn copies: all of it comes, a part at a time.
    let ids: Vec<_> = (0..8).map(|n| driver.try_submit(Op::Read, n * MIB / 4, MIB / 4).unwrap()).collect();
    let first = driver.poll().to_vec();
    // With swap space the file may lie there, and reads go the way of all.
    if rustix::system::sysinfo().totalswap == 0 {
        assert!((1..8).contains(&first.len()), "{} of 2 MiB in one turn", first.len());
        assert_eq!(driver.queue().next_deadline(), Time::ZERO, "the rest waits for nobody");
    }
    let mut done = first;
    while driver.queue().in_flight() > 0 {
        done.extend(driver.wait_some());
    }
    assert_eq!(done.len(), ids.len());
    assert!(ids.iter().all(|id| done.iter().any(|done| done.id == *id && done.result.is_ok())));
    assert_eq!(device.stats().of(OpKind::Read).errors, 0);
    // It ends sooner than it did.
    file.set_len(MIB + 512).unwrap();
    assert_eq!(driver.run(Op::Read, MIB, 4096), Err(IoError::Truncated));
    assert_eq!(driver.read(MIB - 512, 512).unwrap(), bytes[MIB as usize - 512..]);
}

#[test]
fn reading_leaves_the_access_time_of_our_own_file_alone() {
    let (_folder, path) = file(MIB);
    let device = open(&path);
    let mut flags = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| {
        (fs::read_link(entry.path()).ok()? == path).then_some(())?;
        let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
        i32::from_str_radix(&flags, 8).ok()
    });
    let flags = flags.next().expect("the device has the file open");
    assert!(flags & libc::O_NOATIME != 0, "{flags:o}");
    assert!(device.is_direct() == (flags & libc::O_DIRECT != 0), "{flags:o}");
}
