//! REP, RTU and MRA: the answers on the way to a connection (IBTA vol. 1, 12.6.6, 12.6.8, 12.6.9).

use super::fields::CommId;
use crate::wire::layout::layout;
use crate::wire::num::{Psn, Qpn};

layout! {
    /// Reply to a request: accepted.
    Rep: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection.
    remote_id: CommId = 4, 0, 32;
    /// Queue key, datagrams only.
    qkey: u32 = 8, 0, 32;
    /// The sender's queue pair.
    local_qpn: Qpn = 12, 0, 24;
    /// Vendor id, high byte.
    vendor_high: u8 = 15, 0, 8;
    /// Reliable datagrams only.
    local_eecn: u32 = 16, 0, 24;
    /// Vendor id, middle byte.
    vendor_middle: u8 = 19, 0, 8;
    /// The PSN with which the *receiver* of this message shall start sending.
    starting_psn: Psn = 20, 0, 24;
    /// Vendor id, low byte.
    vendor_low: u8 = 23, 0, 8;
    /// RDMA READs and atomics that the sender answers at a time.
    responder_resources: u8 = 24, 0, 8;
    /// RDMA READs and atomics that the sender will have in flight; ib_srp allows none if it is 0.
    initiator_depth: u8 = 25, 0, 8;
    /// How long the sender's queue pair takes to acknowledge, as a time code.
    target_ack_delay: u8 = 26, 0, 5;
    /// Whether the alternate path was accepted.
    failover_accepted: u8 = 26, 5, 2;
    /// End-to-end flow control.
    flow_control: bool = 26, 7, 1;
    /// RNR retry count for the receiver's queue pair.
    rnr_retry: u8 = 27, 0, 3;
    /// The sender's queue pair uses a shared receive queue.
    srq: bool = 27, 3, 1;
    /// Reserved.
    reserved_27: u8 = 27, 4, 4;
    /// GUID of the sender's channel adapter.
    local_ca_guid: u64 = 28, 0, 64;
    /// Consumer's bytes.
    private_data: [u8; 196] = 36, 0, 1568;
}

layout! {
    /// Ready to use: the requester has seen the reply.
    Rtu: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection.
    remote_id: CommId = 4, 0, 32;
    /// Consumer's bytes.
    private_data: [u8; 224] = 8, 0, 1792;
}

layout! {
    /// Message receipt acknowledgement: the answer will take longer.
    Mra: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection.
    remote_id: CommId = 4, 0, 32;
    /// Which message, of [`about`](super::about).
    about: u8 = 8, 0, 2;
    /// Reserved.
    reserved_8: u8 = 8, 2, 6;
    /// Within this time code the answer will come.
    service_timeout: u8 = 9, 0, 5;
    /// Reserved.
    reserved_9: u8 = 9, 5, 3;
    /// Consumer's bytes.
    private_data: [u8; 222] = 10, 0, 1776;
}
