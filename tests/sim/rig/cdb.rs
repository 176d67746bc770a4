//! CDBs, byte by byte.

pub const TEST_UNIT_READY: [u8; 16] = [0; 16];

pub fn inquiry(allocation: u16) -> [u8; 16] {
    let [high, low] = allocation.to_be_bytes();
    [0x12, 0, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
}

pub fn report_luns(allocation: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0xa0;
    cdb[6..10].copy_from_slice(&allocation.to_be_bytes());
    cdb
}

pub fn read_capacity_10() -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x25;
    cdb
}

pub fn synchronize_cache() -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x35;
    cdb
}

fn sixteen(opcode: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn ten(opcode: u8, lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = opcode;
    cdb[2..6].copy_from_slice(&lba.to_be_bytes());
    cdb[7..9].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

pub fn unmap(list_bytes: u16) -> [u8; 16] {
    ten(0x42, 0, list_bytes)
}

pub fn read_10(lba: u32, blocks: u16) -> [u8; 16] {
    ten(0x28, lba, blocks)
}

pub fn write_10(lba: u32, blocks: u16) -> [u8; 16] {
    ten(0x2a, lba, blocks)
}

pub fn read_16(lba: u64, blocks: u32) -> [u8; 16] {
    sixteen(0x88, lba, blocks)
}

pub fn write_16(lba: u64, blocks: u32) -> [u8; 16] {
    sixteen(0x8a, lba, blocks)
}
