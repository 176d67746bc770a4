//! What a shard counts.

use super::why::Exits;

/// What a shard counts, since start.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands taken.
    pub commands: u64,
    /// Task management functions taken.
    pub task_management: u64,
    /// Commands answered with CHECK CONDITION because their descriptors lie.
    pub malformed: u64,
    /// Channels ended because the initiator broke the protocol.
    pub violations: u64,
    /// Receive completions of queue pairs that are unknown or on their way out.
    pub late_receives: u64,
    /// Completions that name nothing any more.
    pub stale_completions: u64,
    /// Tasks ended by task management or with their channel.
    pub aborted: u64,
    /// Task management answered FUNCTION FAILED because a write did not come back in time.
    pub tmf_failed: u64,
    /// Block operations given up by their channel or by task management while in progress.
    pub orphans: u64,
    /// Block operations that failed.
    pub block_errors: u64,
    /// Tasks that had to wait for memory.
    pub memory_waits: u64,
    /// Tasks that had to wait for the READ window or the send queue.
    pub window_waits: u64,
    /// Reads whose data went straight from the memory of their block device.
    pub reads_in_place: u64,
    /// CRED_REQs sent.
    pub credit_requests: u64,
    /// Immediate data copied out of their slot: not aligned for the device, or few slots were posted.
    pub slots_rescued: u64,
    /// Channels that ended, by exit.
    pub exits: Exits,
    /// Escalation: channels that could not be drained in time.
    pub drains_overdue: u64,
    /// Escalation: markers that were carried out, so that the queue pair was moved to ERR once more.
    pub err_ignored: u64,
    /// Escalation: moves to ERR that the device refused.
    pub err_refused: u64,
    /// Escalation: queue pairs that the device did not recycle or destroy when it was asked to.
    pub retires_failed: u64,
    /// Escalation: queue pairs whose recycling or destruction was not answered in time.
    pub retires_overdue: u64,
    /// Escalation: receive slots that a dead queue pair took and never gave back.
    pub recv_lost: u64,
    /// Escalation: times that the receive and completion queues were made anew after the last queue
    /// pair, because of lost receives or an overrun.
    pub queues_renewed: u64,
    /// Queue pairs that were made.
    pub qps_made: u64,
    /// Logins that took a spare queue pair.
    pub qps_reused: u64,
    /// Queue pairs that became spares.
    pub qps_recycled: u64,
    /// Queue pairs that were destroyed.
    pub qps_destroyed: u64,
}

impl Counts {
    /// Channels that ended.
    pub fn channels_ended(&self) -> u64 {
        self.exits.total()
    }

    /// All of them, by name.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("commands", self.commands),
            ("task_management", self.task_management),
            ("malformed", self.malformed),
            ("violations", self.violations),
            ("late_receives", self.late_receives),
            ("stale_completions", self.stale_completions),
            ("aborted", self.aborted),
            ("tmf_failed", self.tmf_failed),
            ("orphans", self.orphans),
            ("block_errors", self.block_errors),
            ("memory_waits", self.memory_waits),
            ("window_waits", self.window_waits),
            ("reads_in_place", self.reads_in_place),
            ("credit_requests", self.credit_requests),
            ("slots_rescued", self.slots_rescued),
            ("channels_ended", self.channels_ended()),
            ("drains_overdue", self.drains_overdue),
            ("err_ignored", self.err_ignored),
            ("err_refused", self.err_refused),
            ("retires_failed", self.retires_failed),
            ("retires_overdue", self.retires_overdue),
            ("recv_lost", self.recv_lost),
            ("queues_renewed", self.queues_renewed),
            ("qps_made", self.qps_made),
            ("qps_reused", self.qps_reused),
            ("qps_recycled", self.qps_recycled),
            ("qps_destroyed", self.qps_destroyed),
        ];
        all.extend(self.exits.named());
        all
    }
}
