//! REJ, DREQ and DREP: how a connection ends (IBTA vol. 1, 12.6.7, 12.6.10, 12.6.11).

use super::fields::CommId;
use crate::wire::layout::layout;
use crate::wire::num::Qpn;

layout! {
    /// Reject: there will be no connection.
    Rej: 232 bytes
    /// The sender's name of the connection, 0 if it has none.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection, 0 if it is not known.
    remote_id: CommId = 4, 0, 32;
    /// Which message was rejected, of [`about`](super::about).
    about: u8 = 8, 0, 2;
    /// Reserved.
    reserved_8: u8 = 8, 2, 6;
    /// Bytes of `info` that count.
    info_len_bytes: u8 = 9, 0, 7;
    /// Reserved.
    reserved_9: u8 = 9, 7, 1;
    /// Why, of [`reason`].
    reason: u16 = 10, 0, 16;
    /// Additional reject information; with a timeout it is the sender's CA GUID.
    info: [u8; 72] = 12, 0, 576;
    /// Consumer's bytes.
    private_data: [u8; 148] = 84, 0, 1184;
}

layout! {
    /// Request to end a connection.
    Dreq: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection.
    remote_id: CommId = 4, 0, 32;
    /// The *receiver's* queue pair.
    remote_qpn: Qpn = 8, 0, 24;
    /// Reserved.
    reserved_11: u8 = 11, 0, 8;
    /// Consumer's bytes.
    private_data: [u8; 220] = 12, 0, 1760;
}

layout! {
    /// Reply to a DREQ.
    Drep: 232 bytes
    /// The sender's name of the connection.
    local_id: CommId = 0, 0, 32;
    /// The receiver's name of the connection.
    remote_id: CommId = 4, 0, 32;
    /// Consumer's bytes.
    private_data: [u8; 224] = 8, 0, 1792;
}

/// Reasons of a REJ (IBTA vol. 1, table 107).
pub mod reason {
    /// No queue pair available.
    pub const NO_QP: u16 = 1;
    /// No resources available.
    pub const NO_RESOURCES: u16 = 3;
    /// The answer did not come in time.
    pub const TIMEOUT: u16 = 4;
    /// Unsupported request.
    pub const UNSUPPORTED: u16 = 5;
    /// The communication id is not known.
    pub const INVALID_COMM_ID: u16 = 6;
    /// The combination of ids and queue pair is not known.
    pub const INVALID_COMM_INSTANCE: u16 = 7;
    /// Nobody listens for the service id.
    pub const INVALID_SERVICE_ID: u16 = 8;
    /// The transport type is not supported.
    pub const INVALID_TRANSPORT: u16 = 9;
    /// The queue pair is still in use by an older connection.
    pub const STALE_CONNECTION: u16 = 10;
    /// A GID is not that of a party.
    pub const INVALID_GID: u16 = 12;
    /// Another port will serve it.
    pub const PORT_REDIRECT: u16 = 24;
    /// Another path MTU is needed.
    pub const INVALID_MTU: u16 = 26;
    /// More responder resources are needed.
    pub const INSUFFICIENT_RESPONDER_RESOURCES: u16 = 27;
    /// The consumer says no; its private data tell why (SRP: LOGIN_REJ).
    pub const CONSUMER: u16 = 28;
    /// The RNR retry count is not acceptable.
    pub const INVALID_RNR_RETRY: u16 = 29;
    /// The communication id is already in use by the same peer.
    pub const DUPLICATE_COMM_ID: u16 = 30;
    /// The class version is not supported.
    pub const INVALID_CLASS_VERSION: u16 = 31;

    /// A reason in words, for logs.
    pub const fn in_words(reason: u16) -> &'static str {
        match reason {
            NO_QP => "no queue pair available",
            NO_RESOURCES => "no resources available",
            TIMEOUT => "timeout",
            UNSUPPORTED => "unsupported request",
            INVALID_COMM_ID => "invalid communication id",
            INVALID_COMM_INSTANCE => "invalid communication instance",
            INVALID_SERVICE_ID => "nobody listens there (invalid service id)",
            INVALID_TRANSPORT => "invalid transport type",
            STALE_CONNECTION => "stale connection",
            INVALID_GID => "invalid GID",
            PORT_REDIRECT => "redirected to another port",
            INVALID_MTU => "invalid path MTU",
            INSUFFICIENT_RESPONDER_RESOURCES => "insufficient responder resources",
            CONSUMER => "refused by the consumer",
            INVALID_RNR_RETRY => "invalid RNR retry count",
            DUPLICATE_COMM_ID => "duplicate communication id",
            INVALID_CLASS_VERSION => "invalid class version",
            _ => "another reason",
        }
    }
}
