//! Our words for libibverbs' numbers, and back. Plain values; nothing here calls a library.
//!
//! Numbers come in as numbers: a newer library or kernel may send one that we do not know, and a Rust
//! enum that holds such a value is undefined behaviour.

use rdma_core_sys as sys;

use crate::rdma::verbs::{Access, PathMtu, QpState, SendOp, WcOpcode, WcStatus};

/// How a work request ended. What verbs have no word for is a failure inside the queue pair.
pub(super) fn wc_status(status: u32) -> WcStatus {
    use sys::ibv_wc_status as s;
    match status {
        s::IBV_WC_SUCCESS => WcStatus::Success,
        s::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        s::IBV_WC_LOC_PROT_ERR | s::IBV_WC_LOC_ACCESS_ERR => WcStatus::LocalProtection,
        s::IBV_WC_WR_FLUSH_ERR => WcStatus::WrFlush,
        s::IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
        s::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        s::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        s::IBV_WC_REM_OP_ERR | s::IBV_WC_REM_ABORT_ERR => WcStatus::RemoteOperation,
        s::IBV_WC_RETRY_EXC_ERR | s::IBV_WC_RESP_TIMEOUT_ERR => WcStatus::RetryExceeded,
        s::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        _ => WcStatus::LocalQpOperation,
    }
}

/// What completed. Flushed completions carry any number here: the status counts first.
pub(super) fn wc_opcode(opcode: u32) -> WcOpcode {
    use sys::ibv_wc_opcode as o;
    match opcode {
        o::IBV_WC_RDMA_WRITE => WcOpcode::Write,
        o::IBV_WC_RDMA_READ => WcOpcode::Read,
        // Bit 7 is set for all kinds of receives.
        opcode if opcode & o::IBV_WC_RECV != 0 => WcOpcode::Recv,
        _ => WcOpcode::Send,
    }
}

/// The opcode of a send work request.
pub(super) fn wr_opcode(op: &SendOp) -> u32 {
    match op {
        SendOp::Send { .. } => sys::ibv_wr_opcode::IBV_WR_SEND,
        SendOp::Write(_) => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        SendOp::Read(_) => sys::ibv_wr_opcode::IBV_WR_RDMA_READ,
    }
}

/// The flags of a send work request.
pub(super) fn send_flags(op: &SendOp, signaled: bool, inline: bool) -> u32 {
    let mut flags = 0;
    if signaled {
        flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
    }
    if inline {
        flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
    }
    if matches!(op, SendOp::Send { solicited: true }) {
        flags |= sys::ibv_send_flags::IBV_SEND_SOLICITED.0;
    }
    flags
}

/// Access rights of a memory region.
pub(super) fn mr_access(access: Access) -> u32 {
    let mut flags = 0;
    // The device refuses remote writing without local writing (ibv_reg_mr(3)).
    if access.local_write || access.remote_write {
        flags |= sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0;
    }
    if access.remote_write {
        flags |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
    }
    if access.remote_read {
        flags |= sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
    }
    flags
}

/// What peers may do through a queue pair. Writing is always allowed, as the kernel's connection
/// manager has it: an empty WRITE is how the other side looks whether we live, and memory has rights
/// of its own.
pub(super) fn qp_access(remote_access: bool) -> u32 {
    let read = if remote_access { sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 } else { 0 };
    sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | read
}

/// The number of a state.
pub(super) fn qp_state(state: QpState) -> u32 {
    use sys::ibv_qp_state as s;
    match state {
        QpState::Reset => s::IBV_QPS_RESET,
        QpState::Init => s::IBV_QPS_INIT,
        QpState::Rtr => s::IBV_QPS_RTR,
        QpState::Rts => s::IBV_QPS_RTS,
        QpState::Sqd => s::IBV_QPS_SQD,
        QpState::Err => s::IBV_QPS_ERR,
    }
}

/// A path MTU by its number, which is IBTA's code too. What is unknown becomes the smallest that every
/// port has.
pub(super) fn path_mtu(mtu: u32) -> PathMtu {
    u8::try_from(mtu).ok().and_then(PathMtu::from_code).unwrap_or(PathMtu::B256)
}

/// What an asynchronous event of a device is about, by its number (`enum ibv_event_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// A completion queue ran over.
    CqError,
    /// A queue pair failed.
    QpFatal,
    /// The peer sent a malformed request.
    QpRequestError,
    /// The peer had no right to what it asked.
    QpAccessError,
    /// Data came before the connection was complete.
    CommEstablished,
    /// The send queue is drained.
    SqDrained,
    /// No receive will be taken for this queue pair any more.
    LastWqeReached,
    /// A shared receive queue failed: no receive of it will complete.
    SrqError,
    /// A shared receive queue has fewer receives than its limit.
    SrqLimit,
    /// A port came up or went down.
    Port {
        /// Which.
        up: bool,
    },
    /// The device is broken or gone.
    DeviceFatal,
    /// Nothing that concerns a target: changes of path, LID, P_Key, subnet manager, GID.
    Other,
}

/// The kind of an event.
pub(super) fn event_kind(event_type: u32) -> EventKind {
    match event_type {
        0 => EventKind::CqError,
        1 => EventKind::QpFatal,
        2 => EventKind::QpRequestError,
        3 => EventKind::QpAccessError,
        4 => EventKind::CommEstablished,
        5 => EventKind::SqDrained,
        8 => EventKind::DeviceFatal,
        9 => EventKind::Port { up: true },
        10 => EventKind::Port { up: false },
        14 => EventKind::SrqError,
        15 => EventKind::SrqLimit,
        16 => EventKind::LastWqeReached,
        _ => EventKind::Other,
    }
}

/// A capability that the library gives as a signed number, as one of ours.
pub(super) fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A number of RDMA READs at a time, which the connection manager carries in one byte.
pub(super) fn reads(value: i32) -> u8 {
    u8::try_from(value.max(0)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_word_and_unknown_ones_are_failures() {
        let words: Vec<WcStatus> = (0..=22).map(wc_status).collect();
        assert_eq!(words.iter().filter(|status| **status == WcStatus::Success).count(), 1);
        assert_eq!(wc_status(5), WcStatus::WrFlush);
        assert_eq!(wc_status(10), WcStatus::RemoteAccess);
        assert_eq!(wc_status(12), WcStatus::RetryExceeded);
        assert_eq!(wc_status(13), WcStatus::RnrRetryExceeded);
        assert_eq!(wc_status(4711), WcStatus::LocalQpOperation);
    }

    #[test]
    fn opcodes_are_what_a_consumer_asks_about() {
        assert_eq!(wc_opcode(0), WcOpcode::Send);
        assert_eq!(wc_opcode(1), WcOpcode::Write);
        assert_eq!(wc_opcode(2), WcOpcode::Read);
        assert_eq!(wc_opcode(128), WcOpcode::Recv);
        assert_eq!(wc_opcode(129), WcOpcode::Recv);
        let read = SendOp::Read(crate::rdma::verbs::Remote::default());
        assert_eq!(wr_opcode(&read), 4);
        assert_eq!(send_flags(&SendOp::Send { solicited: true }, true, false), 2 | 4);
        assert_eq!(send_flags(&read, false, false), 0);
    }

    #[test]
    fn rights_of_memory_and_queue_pairs() {
        assert_eq!(mr_access(Access::LOCAL), 1);
        assert_eq!(mr_access(Access::REMOTE), 7);
        let write_only = Access { local_write: false, remote_write: true, remote_read: false };
        assert_eq!(mr_access(write_only), 3, "remote writing needs local writing");
        assert_eq!((qp_access(false), qp_access(true)), (2, 6));
    }

    #[test]
    fn the_numbers_of_events_are_those_of_the_library() {
        use sys::ibv_event_type as t;
        for (number, kind) in [
            (t::IBV_EVENT_CQ_ERR, EventKind::CqError),
            (t::IBV_EVENT_QP_FATAL, EventKind::QpFatal),
            (t::IBV_EVENT_QP_REQ_ERR, EventKind::QpRequestError),
            (t::IBV_EVENT_QP_ACCESS_ERR, EventKind::QpAccessError),
            (t::IBV_EVENT_COMM_EST, EventKind::CommEstablished),
            (t::IBV_EVENT_SQ_DRAINED, EventKind::SqDrained),
            (t::IBV_EVENT_PATH_MIG, EventKind::Other),
            (t::IBV_EVENT_DEVICE_FATAL, EventKind::DeviceFatal),
            (t::IBV_EVENT_PORT_ACTIVE, EventKind::Port { up: true }),
            (t::IBV_EVENT_PORT_ERR, EventKind::Port { up: false }),
            (t::IBV_EVENT_SRQ_ERR, EventKind::SrqError),
            (t::IBV_EVENT_SRQ_LIMIT_REACHED, EventKind::SrqLimit),
            (t::IBV_EVENT_QP_LAST_WQE_REACHED, EventKind::LastWqeReached),
            (t::IBV_EVENT_GID_CHANGE, EventKind::Other),
        ] {
            assert_eq!(event_kind(number as u32), kind);
        }
        assert_eq!(event_kind(99), EventKind::Other, "an event of a later library");
    }

    #[test]
    fn mtus_and_limits_survive_nonsense() {
        assert_eq!(path_mtu(5), PathMtu::B4096);
        assert_eq!(path_mtu(77), PathMtu::B256);
        assert_eq!((count(-1), count(7)), (0, 7));
        assert_eq!((reads(-1), reads(16), reads(1000)), (0, 16, 255));
    }
}
