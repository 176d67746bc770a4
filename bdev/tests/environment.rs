//! What needs another environment than this process has: a file system that is full, a low limit
//! of locked memory, a block device. Each test runs itself again in a child process that has it.
//! Where that cannot be had (no user namespaces, not root), it says so and leaves it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bdev::testing::Driver;
use bdev::uring::{UringBdev, UringOptions};
use bdev::{Bdev, IoError, Op};
use reactors::memory::Region;

const INSIDE: &str = "BDEV_TEST_INSIDE";
const MIB: u64 = 1 << 20;

/// Whether this is the child; its folder.
fn inside() -> Option<PathBuf> {
    std::env::var_os(INSIDE).map(PathBuf::from)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs the test of that name again, by `command` and this program's path as last arguments.
fn again(test: &str, command: &[&str], folder: &Path) {
    let output = Command::new(command[0])
        .args(&command[1..])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn can(command: &[&str]) -> bool {
    let status =
        Command::new(command[0]).args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let can = status.is_ok_and(|status| status.success());
    if !can {
        println!("left out: this machine does not let us {}", command.join(" "));
    }
    can
}

fn file(folder: &Path, len_bytes: u64) -> PathBuf {
    let path = folder.join("disk");
    File::create(&path).unwrap().set_len(len_bytes).unwrap();
    path
}

#[test]
fn a_full_file_system_is_told_apart_and_recovers() {
    let Some(folder) = inside() else {
        let folder = tempfile::tempdir().unwrap();
        let unshare: &[&str] =
            if is_root() { &["unshare", "--mount"] } else { &["unshare", "--mount", "--map-root-user"] };
        // The mount is gone with the child's namespace.
        let script =
            format!("mount -t tmpfs -o size=1m bdev-test {} && exec \"$0\" \"$@\"", folder.path().display());
        if can(&[unshare, &["true"]].concat()) {
            let command = [unshare, &["sh", "-c", &script]].concat();
            again("a_full_file_system_is_told_apart_and_recovers", &command, folder.path());
        }
        return;
    };
    let path = file(&folder, 4 * MIB);
    let device = UringBdev::open("u0", &path, &UringOptions::default()).unwrap();
    let mut driver = Driver::open(&device, 4);
    let half = vec![7; 512 << 10];
    driver.write(0, &half).unwrap();
    assert_eq!(driver.write(MIB, &vec![8; 1 << 20]), Err(IoError::NoSpace));
    assert_eq!(driver.run(Op::Write { fua: true }, 3 * MIB, 512 << 10), Err(IoError::NoSpace));
    assert!(driver.read(0, 512 << 10).unwrap() == half, "what was written stays");
    driver.run(Op::Unmap, 0, 4 * MIB).unwrap();
    driver.write(2 * MIB, &half).unwrap();
    assert!(driver.read(2 * MIB, 512 << 10).unwrap() == half);
    assert_eq!(device.stats().errors(), 2);
}

#[test]
fn a_low_limit_of_locked_memory_costs_speed_and_nothing_else() {
    const LIMIT_KIB: u64 = 4096;
    let Some(folder) = inside() else {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let limit = format!("--memlock={0}:{0}", LIMIT_KIB << 10);
        let mut command = vec!["prlimit", &limit];
        if is_root() {
            command.extend(["setpriv", "--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]);
        }
        if can(&[&command[..], &["true"]].concat()) {
            again("a_low_limit_of_locked_memory_costs_speed_and_nothing_else", &command, folder.path());
        }
        return;
    };
    let path = file(&folder, MIB);
    let device = UringBdev::open("u0", &path, &UringOptions::default()).unwrap();
    let mut queue = device.open_queue(4).unwrap();
    let region = Region::heap(64 << 20);
    let id = queue.register(&region).unwrap();
    let pinned_kib = status_kib("VmPin");
    assert!(pinned_kib <= LIMIT_KIB, "{pinned_kib} KiB pinned");
    if is_root() {
        assert!(pinned_kib > 0, "as much as is allowed is registered");
    }
    // Within what could be registered, beyond it, and across its end.
    for region_offset in [0, 63 << 20, (pinned_kib as usize) * 1024 - 4096] {
        let bytes = [region_offset as u8 ^ 0x5a; 8192];
        region.write(region_offset, &bytes).unwrap();
        for op in [Op::Write { fua: false }, Op::Read] {
            let io = bdev::Io {
                id: bdev::IoId(1),
                op,
                offset_bytes: 0,
                len_bytes: 8192,
                region: id,
                region_offset,
            };
            queue.submit(io).unwrap();
            let mut done = Vec::with_capacity(4);
            while done.is_empty() {
                queue.poll(reactors::time::Time::ZERO, &mut done);
            }
            assert_eq!(done[0].result, Ok(()));
            if op == Op::Read {
                let same = region.with_bytes(region_offset, 8192, |read| read == bytes).unwrap();
                assert!(same, "at {region_offset}");
            } else {
                region.fill(region_offset, 8192, 0).unwrap();
            }
        }
    }
}

fn status_kib(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A loop device; gone with the value.
struct Loop {
    device: PathBuf,
}

impl Loop {
    fn attach(file: &Path, more: &[&str]) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).args(more).arg(file).output().ok()?;
        let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if output.status.success() && device.exists() {
            return Some(Loop { device });
        }
        println!("left out: no loop device ({})", String::from_utf8_lossy(&output.stderr).trim());
        None
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.device).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays attached", self.device.display());
    }
}

#[test]
fn block_devices_have_geometry_holes_and_one_writer() {
    if !is_root() {
        return println!("left out: only root attaches loop devices");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = file(folder.path(), 8 * MIB);
    let Some(block) = Loop::attach(&path, &[]) else { return };
    let device = UringBdev::open("u0", &block.device, &UringOptions::default()).unwrap();
    let geometry = device.geometry();
    assert_eq!(geometry.len_bytes(), 8 * MIB);
    assert!(device.is_direct() && !geometry.read_only);
    {
        let mut driver = Driver::open(&device, 4);
        let bytes: Vec<u8> = (0..65536_u32).map(|n| (n % 251) as u8).collect();
        driver.write(MIB, &bytes).unwrap();
        driver.run(Op::Flush, 0, 0).unwrap();
        driver.run(Op::WriteZeroes, MIB + 4096, 4096).unwrap();
        if geometry.unmap {
            driver.run(Op::Unmap, MIB + 8192, 4096).unwrap();
        } else {
            driver.run(Op::WriteZeroes, MIB + 8192, 4096).unwrap();
        }
        let mut expect = bytes.clone();
        expect[4096..12288].fill(0);
        assert!(driver.read(MIB, bytes.len()).unwrap() == expect);
    }
    let why =
        UringBdev::open("u1", &block.device, &UringOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(
        why.ends_with(
            "it is in use: mounted, or part of a volume or array; free it, or serve it read-only (,ro)"
        ),
        "{why}"
    );
    let read_only = UringOptions { read_only: true, ..UringOptions::default() };
    UringBdev::open("u1", &block.device, &read_only).unwrap();
    drop(device);
    drop(block);

    let Some(block) = Loop::attach(&path, &["--read-only"]) else { return };
    let why =
        UringBdev::open("u0", &block.device, &UringOptions::default()).map(|_| ()).unwrap_err().to_string();
    assert!(why.contains("cannot be opened for writing"), "{why}");
    let device = UringBdev::open("u0", &block.device, &read_only).unwrap();
    assert_eq!(Driver::open(&device, 4).read(MIB + 4096, 4096).unwrap(), [0; 4096]);
    drop(device);
    drop(block);

    let Some(block) = Loop::attach(&path, &["--sector-size", "4096"]) else { return };
    let small = UringOptions { block_bytes: Some(512), ..UringOptions::default() };
    let why = UringBdev::open("u0", &block.device, &small).map(|_| ()).unwrap_err().to_string();
    assert!(why.ends_with("a block size of 512 bytes is below the 4096 of the device; use 4096"), "{why}");
    let device = UringBdev::open("u0", &block.device, &UringOptions::default()).unwrap();
    assert_eq!((device.geometry().block_bytes, device.geometry().blocks), (4096, 2048));
    drop(device);
}
