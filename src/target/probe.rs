//! Probes of idle channels. SRP has no keep-alive: an empty RDMA WRITE that the peer has to
//! acknowledge shows that it is still there, and silence ends the channel as anything else does.

use reactors::slab::Key;
use reactors::time::Time;

use super::fabric::Fabric;
use super::life::Life;
use super::shard::Shard;
use super::why::Why;
use super::wr::Tag;
use crate::rdma::verbs::{Remote, SendOp, SendWr, SgeList};

impl<F: Fabric> Shard<F> {
    /// Probes idle channels, and ends those whose peer is silent.
    pub(super) fn probe_channels(&mut self, now: Time) {
        let limits = self.snapshot.limits;
        let mut silent = Vec::new();
        for (key, channel) in self.channels.iter_mut() {
            // One that waits for its RTU is not probed: the peer may not be ready to receive. It is
            // given twice the time, whatever the peer's connection manager asks for.
            let (patience, probes) = match channel.life {
                Life::Live => (limits.dead_after, true),
                Life::Connecting => (2 * limits.dead_after, false),
                _ => continue,
            };
            let heard = self.fabric.last_heard(channel.qp).unwrap_or(channel.since).max(channel.since);
            let silence = now.since(heard);
            if silence >= patience {
                silent.push((key, silence));
            } else if probes && silence >= limits.probe_interval() && !channel.probing {
                let probe = empty_write(Tag::Probe.bits(key));
                // A full send queue waits for the peer already.
                if self.fabric.post_send(now, channel.qp, &probe).is_ok() {
                    channel.posted(true);
                    channel.probing = true;
                }
            }
        }
        for (key, silence) in silent {
            self.end_channel(now, key, Why::Silent(silence));
        }
    }

    /// The peer has acknowledged a probe, or the probe was flushed.
    pub(super) fn on_probe_back(&mut self, key: Key) {
        if let Some(channel) = self.channels.get_mut(key) {
            channel.probing = false;
        }
    }
}

/// A signaled RDMA WRITE of no bytes, which needs no key: it moves nothing, and has a completion.
pub(super) fn empty_write(wr_id: u64) -> SendWr {
    SendWr { wr_id, op: SendOp::Write(Remote::default()), sges: SgeList::EMPTY, signaled: true }
}
