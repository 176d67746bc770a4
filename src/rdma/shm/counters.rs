//! What a device counts, since start.

/// What a device counts, since start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records taken out of rings.
    pub records_in: u64,
    /// Records put into rings.
    pub records_out: u64,
    /// Bytes copied to or from the peers' memory: RDMA WRITE and READ.
    pub rdma_bytes: u64,
    /// Work requests that had to wait for room in a ring.
    pub ring_waits: u64,
    /// Sleeping peers that were woken.
    pub bells_rung: u64,
    /// Times that a peer woke us.
    pub bells_heard: u64,
    /// RDMA refused, because key, bounds or right were wrong.
    pub bad_access: u64,
    /// Peers that broke the rules of the ring.
    pub liars: u64,
    /// Peers that were gone without a word.
    pub peers_gone: u64,
    /// Completions lost, because their queue had run over.
    pub completions_lost: u64,
}

impl Counters {
    /// By name.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("shm_records_in", self.records_in),
            ("shm_records_out", self.records_out),
            ("shm_rdma_bytes", self.rdma_bytes),
            ("shm_ring_waits", self.ring_waits),
            ("shm_bells_rung", self.bells_rung),
            ("shm_bells_heard", self.bells_heard),
            ("shm_bad_access", self.bad_access),
            ("shm_liars", self.liars),
            ("shm_peers_gone", self.peers_gone),
            ("shm_completions_lost", self.completions_lost),
        ]
    }
}
