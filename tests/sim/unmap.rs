//! UNMAP: a parameter list becomes block operations, whichever way it came.

use srpoll::srp::tmf::{NO_TASK_TAG, TmfFunction};
use srpoll::wire::scsi::unmap::{UnmapDescriptor, emit_one};
use srpoll::wire::srp::{Cmd, DataBuffer};

use crate::rig::answer::Answer;
use crate::rig::command::cmd;
use crate::rig::{Rig, Setup, cdb, disk, lun, ms};

/// UNMAP of a list that is immediate data, or lies in the initiator's memory.
fn unmap(rig: &mut Rig, raw: usize, channel: usize, list: &[u8], immediate: bool) -> Answer {
    let tag = rig.raws[raw].tag();
    rig.raws[raw].memory.write(0, list).unwrap();
    let data_out = if immediate {
        DataBuffer::Immediate { data: list, offset: 68 }
    } else {
        DataBuffer::Direct(rig.raws[raw].piece(0, list.len()))
    };
    rig.command(raw, channel, &Cmd { data_out, ..cmd(tag, 0, cdb::unmap(list.len() as u16)) })
}

/// Two descriptors: blocks 8..16 and 100..101.
fn two() -> Vec<u8> {
    let mut list = emit_one(UnmapDescriptor { lba: 8, blocks: 8 }).to_vec();
    list.extend(&emit_one(UnmapDescriptor { lba: 100, blocks: 1 })[8..]);
    (list[1], list[3]) = (38, 32);
    list
}

#[test]
fn what_is_unmapped_reads_as_zeroes_and_the_rest_stays() {
    for immediate in [false, true] {
        let medium = disk::malloc(1);
        disk::write(&*medium, 0, &[0xa5; 64 << 10]);
        let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone())]));
        let raw = rig.raw(0);
        let channel = rig.login(raw);
        rig.ready(raw, channel, 0);
        assert!(unmap(&mut rig, raw, channel, &two(), immediate).is_good());
        let now = disk::read(&*medium, 0, 64 << 10);
        for (block, bytes) in now.chunks(512).enumerate() {
            let gone = (8..16).contains(&block) || block == 100;
            assert!(bytes.iter().all(|&byte| byte == if gone { 0 } else { 0xa5 }), "block {block}");
        }
        assert_eq!(medium.stats().of(bdev::OpKind::Unmap).ops, 2);
        rig.audit();
    }
}

#[test]
fn a_list_with_one_bad_descriptor_changes_nothing() {
    let medium = disk::malloc(1);
    disk::write(&*medium, 0, &[0xa5; 8192]);
    let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone())]));
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    let mut list = two();
    list[24..32].copy_from_slice(&u64::MAX.to_be_bytes());
    let answer = unmap(&mut rig, raw, channel, &list, true);
    assert_eq!(answer.sense, Some((5, 0x21, 0)), "out of range");
    let answer = unmap(&mut rig, raw, channel, &two()[..30], false);
    assert_eq!(answer.sense, Some((5, 0x1a, 0)), "shorter than it says");
    assert_eq!(disk::read(&*medium, 0, 8192), [0xa5; 8192]);
    rig.audit();
}

#[test]
fn a_reset_ends_it_between_two_descriptors() {
    let medium = disk::Hang::new(1);
    disk::write(medium.medium(), 0, &[0xa5; 64 << 10]);
    let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone())]));
    let raw = rig.raw(0);
    let channel = rig.login(raw);
    rig.ready(raw, channel, 0);
    medium.hang(8 * 512..16 * 512);
    let list = two();
    let tag = rig.raws[raw].tag();
    let data_out = DataBuffer::Immediate { data: &list, offset: 68 };
    let request = Cmd { data_out, ..cmd(tag, 0, cdb::unmap(list.len() as u16)) };
    rig.post(raw, channel, &request);
    rig.until("the first descriptor hangs", |_| medium.held() == 1);
    let reset = rig.manage(raw, channel, TmfFunction::LunReset, 0, NO_TASK_TAG);
    rig.run(ms(10));
    medium.release();
    assert_eq!(rig.answer(raw, channel, reset).code, Some(0));
    assert!(rig.answered(raw, channel, tag).is_none(), "its initiator ended it");
    let now = disk::read(medium.medium(), 0, 64 << 10);
    assert!(now[100 * 512..101 * 512].iter().all(|&byte| byte == 0xa5), "the second was not begun");
    assert!(rig.plain(raw, channel, 0, cdb::TEST_UNIT_READY).is_good());
    rig.audit();
}
