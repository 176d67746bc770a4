//! REQ: the request for a connection (IBTA vol. 1, 12.6.5).

use super::fields::{CommId, Gid};
use crate::wire::layout::layout;
use crate::wire::num::{Psn, Qpn};

layout! {
    /// Request for communication.
    Req: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// Reserved.
    reserved_4: u8 = 4, 0, 8;
    /// Vendor id, 0 from Linux.
    vendor_id: u32 = 5, 0, 24;
    /// Which service is asked for.
    service_id: u64 = 8, 0, 64;
    /// GUID of the sender's channel adapter.
    local_ca_guid: u64 = 16, 0, 64;
    /// Reserved.
    reserved_24: u32 = 24, 0, 32;
    /// Queue key, datagrams only.
    qkey: u32 = 28, 0, 32;
    /// The sender's queue pair.
    local_qpn: Qpn = 32, 0, 24;
    /// RDMA READs and atomics that the sender answers at a time.
    responder_resources: u8 = 35, 0, 8;
    /// Reliable datagrams only.
    local_eecn: u32 = 36, 0, 24;
    /// RDMA READs and atomics that the sender will have in flight.
    initiator_depth: u8 = 39, 0, 8;
    /// Reliable datagrams only.
    remote_eecn: u32 = 40, 0, 24;
    /// Within this time code the receiver shall answer.
    remote_cm_timeout: u8 = 43, 0, 5;
    /// Transport: 0 is RC.
    transport: u8 = 43, 5, 2;
    /// End-to-end flow control.
    flow_control: bool = 43, 7, 1;
    /// The PSN with which the *receiver* of this message shall start sending.
    starting_psn: Psn = 44, 0, 24;
    /// Within this time code the sender will answer a REP.
    local_cm_timeout: u8 = 47, 0, 5;
    /// Retry count for the receiver's queue pair.
    retry_count: u8 = 47, 5, 3;
    /// Partition key.
    pkey: u16 = 48, 0, 16;
    /// Path MTU code, 1..=5.
    path_mtu: u8 = 50, 0, 4;
    /// Reliable datagrams only.
    rdc_exists: bool = 50, 4, 1;
    /// RNR retry count for the receiver's queue pair.
    rnr_retry: u8 = 50, 5, 3;
    /// How often a message of this connection may be sent again.
    max_cm_retries: u8 = 51, 0, 4;
    /// The sender's queue pair uses a shared receive queue.
    srq: bool = 51, 4, 1;
    /// Extended transport type, 0.
    ext_transport: u8 = 51, 5, 3;
    /// The sender's LID; 0xffff on RoCEv2.
    local_lid: u16 = 52, 0, 16;
    /// The receiver's LID; 0xffff on RoCEv2.
    remote_lid: u16 = 54, 0, 16;
    /// The sender's GID: its IP address.
    local_gid: Gid = 56, 0, 128;
    /// The receiver's GID: its IP address.
    remote_gid: Gid = 72, 0, 128;
    /// Flow label, 20 bits.
    flow_label: u32 = 88, 0, 20;
    /// Reserved.
    reserved_90: u8 = 90, 4, 6;
    /// Packet rate code.
    packet_rate: u8 = 91, 2, 6;
    /// Traffic class.
    traffic_class: u8 = 92, 0, 8;
    /// Hop limit.
    hop_limit: u8 = 93, 0, 8;
    /// Service level.
    sl: u8 = 94, 0, 4;
    /// Both ends are on one subnet; 0 on RoCEv2 even if they are.
    subnet_local: bool = 94, 4, 1;
    /// Reserved.
    reserved_94: u8 = 94, 5, 3;
    /// Local ACK timeout code for the receiver's queue pair.
    ack_timeout: u8 = 95, 0, 5;
    /// Reserved.
    reserved_95: u8 = 95, 5, 3;
    /// The alternate path, zero if there is none.
    alternate: [u8; 44] = 96, 0, 352;
    /// Consumer's bytes; with the RDMA-CM, [`CmaHeader`](super::CmaHeader) comes first.
    private_data: [u8; 92] = 140, 0, 736;
}
