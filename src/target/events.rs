//! What the RDMA device says by itself.

use reactors::time::Time;

use super::fabric::Fabric;
use super::shard::Shard;
use super::why::Why;
use crate::rdma::verbs::{AsyncEvent, QpId};

impl<F: Fabric> Shard<F> {
    pub(super) fn take_async_events(&mut self, now: Time) -> usize {
        let mut taken = 0;
        while let Some(event) = self.fabric.poll_event() {
            taken += 1;
            match event {
                AsyncEvent::LastWqeReached(qp) => self.on_last_wqe(qp),
                AsyncEvent::QpRetired { qp, outcome } => self.on_qp_retired(now, qp, outcome),
                AsyncEvent::QpFatal(qp) => self.on_qp_event(now, qp, Why::QueuePair),
                AsyncEvent::QpRequestError(qp) | AsyncEvent::QpAccessError(qp) => {
                    self.on_qp_event(now, qp, Why::BadRequest);
                }
                AsyncEvent::CommEstablished(qp) => {
                    if let Some(key) = self.channel_of(qp) {
                        self.on_data_first(key);
                    }
                }
                AsyncEvent::CqOverrun(cq) => {
                    if cq == self.queues.cq {
                        tracing::error!(
                            shard = self.index,
                            "the completion queue ran over, all channels end"
                        );
                        self.queues.ran_over();
                        self.end_all_channels(now, &Why::Overrun);
                    }
                }
                AsyncEvent::DeviceFatal => {
                    tracing::error!(shard = self.index, "the RDMA device is gone, all channels end");
                    self.queues.device_is_gone();
                    self.end_all_channels(now, &Why::DeviceRemoved);
                    self.give_up_spares(now);
                }
                AsyncEvent::PortState { up } => tracing::warn!(shard = self.index, up, "port state"),
                AsyncEvent::SrqLimit(_) => self.queues.receives_are_scarce(),
                AsyncEvent::SqDrained(_) => {}
            }
        }
        taken
    }

    fn on_qp_event(&mut self, now: Time, qp: QpId, why: Why) {
        if let Some(key) = self.channel_of(qp) {
            self.end_channel(now, key, why);
        }
    }
}
