//! Messages that are only recognised, so that they can be refused: alternate paths (LAP, APR;
//! IBTA vol. 1, 12.8) and service id resolution (SIDR; 12.11).

use super::fields::{CommId, Gid};
use crate::wire::layout::layout;
use crate::wire::num::Qpn;

layout! {
    /// Load alternate path.
    Lap: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection.
    remote_id: CommId = 4, 0, 32;
    /// Reserved.
    reserved_8: u32 = 8, 0, 32;
    /// The receiver's queue pair.
    remote_qpn: Qpn = 12, 0, 24;
    /// Within this time code the receiver shall answer.
    remote_cm_timeout: u8 = 15, 0, 5;
    /// Reserved.
    reserved_15: u8 = 15, 5, 3;
    /// Reserved.
    reserved_16: u32 = 16, 0, 32;
    /// The sender's LID of the path.
    local_lid: u16 = 20, 0, 16;
    /// The receiver's LID of the path.
    remote_lid: u16 = 22, 0, 16;
    /// The sender's GID of the path.
    local_gid: Gid = 24, 0, 128;
    /// The receiver's GID of the path.
    remote_gid: Gid = 40, 0, 128;
    /// Flow label, 20 bits.
    flow_label: u32 = 56, 0, 20;
    /// Reserved.
    reserved_58: u8 = 58, 4, 4;
    /// Traffic class.
    traffic_class: u8 = 59, 0, 8;
    /// Hop limit.
    hop_limit: u8 = 60, 0, 8;
    /// Reserved.
    reserved_61: u8 = 61, 0, 2;
    /// Packet rate code.
    packet_rate: u8 = 61, 2, 6;
    /// Service level.
    sl: u8 = 62, 0, 4;
    /// Both ends are on one subnet.
    subnet_local: bool = 62, 4, 1;
    /// Reserved.
    reserved_62: u8 = 62, 5, 3;
    /// Local ACK timeout code of the path.
    ack_timeout: u8 = 63, 0, 5;
    /// Reserved.
    reserved_63: u8 = 63, 5, 3;
    /// Consumer's bytes.
    private_data: [u8; 168] = 64, 0, 1344;
}

layout! {
    /// Alternate path response.
    Apr: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection.
    remote_id: CommId = 4, 0, 32;
    /// Bytes of `info` that count.
    info_len_bytes: u8 = 8, 0, 8;
    /// 0 accepted, 1 invalid communication id, 2 not supported, 3 refused.
    status: u8 = 9, 0, 8;
    /// Reserved.
    reserved_10: u16 = 10, 0, 16;
    /// Additional information.
    info: [u8; 72] = 12, 0, 576;
    /// Consumer's bytes.
    private_data: [u8; 148] = 84, 0, 1184;
}

impl Apr {
    /// Alternate paths are not supported.
    pub const UNSUPPORTED: u8 = 2;
}

layout! {
    /// Service id resolution request.
    SidrReq: 232 bytes
    /// The sender's name of the request.
    request_id: CommId = 0, 0, 32;
    /// Partition key.
    pkey: u16 = 4, 0, 16;
    /// Reserved.
    reserved_6: u16 = 6, 0, 16;
    /// Which service is asked for.
    service_id: u64 = 8, 0, 64;
    /// Consumer's bytes.
    private_data: [u8; 216] = 16, 0, 1728;
}

layout! {
    /// Service id resolution response.
    SidrRep: 232 bytes
    /// The asker's name of the request.
    request_id: CommId = 0, 0, 32;
    /// 0 resolved, 1 not supported.
    status: u8 = 4, 0, 8;
    /// Bytes of `info` that count.
    info_len_bytes: u8 = 5, 0, 8;
    /// Reserved.
    reserved_6: u16 = 6, 0, 16;
    /// The queue pair that serves.
    qpn: Qpn = 8, 0, 24;
    /// Reserved.
    reserved_11: u8 = 11, 0, 8;
    /// The service.
    service_id: u64 = 12, 0, 64;
    /// Its queue key.
    qkey: u32 = 20, 0, 32;
    /// Additional information.
    info: [u8; 72] = 24, 0, 576;
    /// Consumer's bytes.
    private_data: [u8; 136] = 96, 0, 1088;
}

impl SidrRep {
    /// Datagram services are not supported.
    pub const UNSUPPORTED: u8 = 1;
}
