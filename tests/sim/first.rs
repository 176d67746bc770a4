//! The thin path: login, INQUIRY, a WRITE and a READ.

use crate::rig::{Rig, Setup, cdb, disk, lun};

#[test]
fn login_inquiry_write_and_read() {
    let medium = disk::malloc(8);
    let mut rig = Rig::new(Setup::new(vec![lun(0, medium.clone())]));
    let raw = rig.raw(0);
    let channel = rig.login(raw);

    let answer = rig.read_in(raw, channel, 0, cdb::inquiry(36), 0, 36);
    assert!(answer.is_good(), "{answer:?}");
    let data = rig.raws[raw].bytes(0, 36);
    assert_eq!(&data[..8], [0x00, 0x00, 0x06, 0x12, 0x5b, 0x00, 0x00, 0x02]);
    assert_eq!(&data[8..32], b"SRPOLL  Malloc disk     ");

    rig.ready(raw, channel, 0);
    let written = rig.raws[raw].fill(4096, 64 << 10, 7);
    let answer = rig.write_out(raw, channel, 0, cdb::write_10(16, 128), 4096, 64 << 10);
    assert!(answer.is_good(), "{answer:?}");
    assert_eq!(disk::read(&*medium, 16 * 512, 64 << 10), written);

    let answer = rig.read_in(raw, channel, 0, cdb::read_16(16, 128), 1 << 20, 64 << 10);
    assert!(answer.is_good(), "{answer:?}");
    assert_eq!(rig.raws[raw].bytes(1 << 20, 64 << 10), written);
}
