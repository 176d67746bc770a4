//! A device with queues and memory: either side of an exchange of commands, data and responses, on whatever
//! provider. Memory is blocks; the first of them are receive buffers.

#![allow(dead_code, reason = "each bench takes what it needs")]

use reactors::memory::Region;
use reactors::time::Time;
use srpoll::rdma::verbs::*;
use srpoll::wire::num::{Psn, Qpn};

pub(crate) const COMMAND_BYTES: usize = 64;
pub(crate) const RESPONSE_BYTES: usize = 36;
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Room for a completion.
pub(crate) const EMPTY: Wc =
    Wc { wr_id: 0, status: WcStatus::Success, opcode: WcOpcode::Send, len_bytes: 0, qpn: Qpn::new(0) };

/// One side.
pub(crate) struct Node<D> {
    pub(crate) device: D,
    pub(crate) cq: CqId,
    pub(crate) qpn: Qpn,
    region: Region,
    keys: MrKeys,
    srq: SrqId,
    qp: QpId,
}

impl<D: Device> Node<D> {
    /// A queue pair that is not connected, `blocks` of memory, and in the first `receives` of them as many
    /// posted receives.
    pub(crate) fn new(mut device: D, receives: usize, blocks: usize) -> Node<D> {
        let pd = device.alloc_pd().unwrap();
        let region = device.allocate(blocks * BLOCK_BYTES, Access::REMOTE).expect("memory");
        let keys = device.register(pd, &region, Access::REMOTE).unwrap();
        let cq = device.create_cq(4096).unwrap();
        let srq = device.create_srq(pd, receives as u32).unwrap();
        let init = QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: Some(srq),
            max_send_wr: 8 * receives as u32,
            max_recv_wr: 0,
            remote_access: true,
        };
        let qp = device.create_qp(&init).unwrap();
        let qpn = device.qpn(qp).unwrap();
        device.modify_qp(Time::ZERO, qp, &QpModify::Init).unwrap();
        let mut node = Node { device, cq, qpn, region, keys, srq, qp };
        (0..receives).for_each(|block| node.post_receive(block as u64));
        node
    }

    fn sge(&self, block: u64, len_bytes: usize) -> Sge {
        let addr = self.region.addr() + block * BLOCK_BYTES as u64;
        Sge { addr, len_bytes: len_bytes as u32, lkey: self.keys.lkey }
    }

    /// A block, as the peer names it.
    pub(crate) fn remote(&self, block: u64) -> Remote {
        Remote { addr: self.region.addr() + block * BLOCK_BYTES as u64, rkey: self.keys.rkey }
    }

    /// The first number in a block.
    pub(crate) fn number(&self, block: u64) -> u64 {
        let mut bytes = [0; 8];
        self.region.read(block as usize * BLOCK_BYTES, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }

    /// Writes that number.
    pub(crate) fn set_number(&self, block: u64, number: u64) {
        self.region.write(block as usize * BLOCK_BYTES, &number.to_le_bytes()).unwrap();
    }

    /// Receives into a block; that is the number of the work request, too.
    pub(crate) fn post_receive(&mut self, block: u64) {
        let sge = self.sge(block, BLOCK_BYTES);
        self.device.post_srq_recv(self.srq, &RecvWr { wr_id: block, sge }).unwrap();
    }

    /// Posts an unsignaled work request from the start of a block.
    pub(crate) fn post(&mut self, now: Time, op: SendOp, block: u64, len_bytes: usize) {
        let wr = SendWr { wr_id: 0, op, sges: SgeList::one(self.sge(block, len_bytes)), signaled: false };
        self.device.post_send(now, self.qp, &wr).unwrap();
    }

    /// Makes the queue pair ready, for that peer.
    pub(crate) fn connect(&mut self, path: Path, peer: Qpn) {
        let rtr = RtrAttr {
            path,
            path_mtu: PathMtu::B4096,
            dest_qpn: peer,
            rq_psn: Psn::new(1),
            max_dest_rd_atomic: 16,
            min_rnr_timer: 12,
        };
        let rts = RtsAttr {
            sq_psn: Psn::new(1),
            timeout_code: 14,
            retry_count: 7,
            retry_forever: true,
            rnr_retry: 7,
            max_rd_atomic: 16,
        };
        self.device.modify_qp(Time::ZERO, self.qp, &QpModify::Rtr(rtr)).unwrap();
        self.device.modify_qp(Time::ZERO, self.qp, &QpModify::Rts(rts)).unwrap();
    }
}
