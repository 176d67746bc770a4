//! What a device can do: asked where it says so, tried where it does not.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdma_core_sys as raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::convert::{self, EventKind};
use super::sys::{Attr, Context, Cq, Pd, Qp, QpParts, Srq};
use crate::rdma::verbs::{DeviceCaps, MAX_SGE, QpState, Recycling};

/// Bytes that are worth copying when a SEND is posted: an SRP_RSP without sense data is 36.
const INLINE_BYTES: u32 = 64;
/// How long LAST_WQE_REACHED is awaited in the trial: rxe takes 1 to 3 ms.
const LAST_WQE_WITHIN: Duration = Duration::from_millis(50);

/// What a device can do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// What consumers of verbs ask about.
    pub caps: DeviceCaps,
    /// Most RDMA READs of ours in flight on a queue pair.
    pub max_reads: u8,
    /// Pieces of memory of a work request.
    pub max_sge: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Bytes of a SEND that the device takes with the work request; 0 is never.
    pub inline_bytes: u32,
}

impl Abilities {
    /// Why a target cannot run on it, if it cannot.
    pub(super) fn check(&self) -> Result<(), String> {
        let least = |what: &str, has: u32, needs: u32| {
            if has < needs { Err(format!("it has {has} {what}, {needs} are needed")) } else { Ok(()) }
        };
        least("shared receive queues", self.max_srq, 1)?;
        least("pieces of memory in a work request", self.max_sge, MAX_SGE as u32)?;
        least("RDMA READs at a time", self.max_reads.into(), 1)?;
        least("send work requests of a queue pair", self.caps.max_send_wr, 16)?;
        least("receives of a shared receive queue", self.caps.max_srq_wr, 64)
    }
}

/// Asks and tries. Reads asynchronous events, so nobody else may do so at the time.
pub(super) fn probe(context: &Arc<Context>, port: u8) -> io::Result<Abilities> {
    context.watch_events()?;
    let device = context.device()?;
    let port_attr = context.port(port)?;
    let trial = Trial::new(context)?;
    let inline_bytes = trial.inline_bytes();
    Ok(Abilities {
        caps: DeviceCaps {
            max_qp: convert::count(device.max_qp),
            max_cqe: convert::count(device.max_cqe),
            max_srq_wr: convert::count(device.max_srq_wr),
            max_send_wr: convert::count(device.max_qp_wr),
            max_rd_atomic: convert::reads(device.max_qp_rd_atom),
            max_message_bytes: port_attr.max_msg_sz,
            last_wqe_event: trial.sends_last_wqe(port)?,
            recycling: Recycling::SameNumber,
        },
        max_reads: convert::reads(device.max_qp_init_rd_atom),
        max_sge: convert::count(device.max_sge),
        max_srq: convert::count(device.max_srq),
        inline_bytes,
    })
}

/// A queue pair that is never connected.
struct Trial {
    context: Arc<Context>,
    qp: Qp,
}

impl Trial {
    fn new(context: &Arc<Context>) -> io::Result<Trial> {
        let pd = Pd::new(context)?;
        let cq = Cq::new(context, 16, None, 0)?;
        let srq = Some(Srq::new(&pd, 16, 0)?);
        let mut parts = QpParts {
            pd,
            send_cq: Arc::clone(&cq),
            recv_cq: cq,
            srq,
            max_send_wr: 8,
            max_recv_wr: 0,
            max_inline_bytes: INLINE_BYTES,
        };
        let mut qp = Qp::new(&parts);
        if qp.is_err() {
            parts.max_inline_bytes = 0;
            qp = Qp::new(&parts);
        }
        Ok(Trial { context: Arc::clone(context), qp: qp? })
    }

    /// What the device granted; it may give more than was asked for.
    fn inline_bytes(&self) -> u32 {
        self.qp.inline_bytes().min(INLINE_BYTES)
    }

    /// Whether a queue pair with a shared receive queue says when it takes no more of it (IBTA
    /// vol. 1, 10.3.1: Last WQE Reached). rxe of kernel 6.1 does not.
    fn sends_last_wqe(&self, port: u8) -> io::Result<bool> {
        let mut attr = Attr::none();
        attr.qp_state = convert::qp_state(QpState::Init);
        attr.port_num = port;
        attr.qp_access_flags = convert::qp_access(false);
        self.qp.modify(&attr, INIT_MASK)?;
        self.qp.set_state(QpState::Err)?;
        let deadline = Instant::now() + LAST_WQE_WITHIN;
        loop {
            while let Some((number, _)) = self.context.next_event()? {
                if convert::event_kind(number) == EventKind::LastWqeReached {
                    return Ok(true);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let fd = self.context.event_fd();
            let wait = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&wait)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// What RESET -> INIT says.
pub(super) const INIT_MASK: u32 = raw::ibv_qp_attr_mask::IBV_QP_STATE.0
    | raw::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX.0
    | raw::ibv_qp_attr_mask::IBV_QP_PORT.0
    | raw::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_target_needs_is_said_in_words() {
        let caps = DeviceCaps {
            max_qp: 64,
            max_cqe: 4096,
            max_srq_wr: 4096,
            max_send_wr: 1024,
            max_rd_atomic: 16,
            max_message_bytes: 1 << 30,
            last_wqe_event: false,
            recycling: Recycling::SameNumber,
        };
        let able = Abilities { caps, max_reads: 16, max_sge: 30, max_srq: 8, inline_bytes: 64 };
        assert_eq!(able.check(), Ok(()));
        let iwarp = Abilities { max_srq: 0, ..able };
        assert_eq!(iwarp.check().unwrap_err(), "it has 0 shared receive queues, 1 are needed");
        let narrow = Abilities { max_sge: 1, ..able };
        assert!(narrow.check().unwrap_err().contains("1 pieces of memory"));
    }
}
