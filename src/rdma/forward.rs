//! Forwarding for providers that stand on the engine and the connection manager: the verbs that
//! need nothing of the provider itself, as items of its `impl`.

/// Items of `impl verbs::Device`: every verb that the engine in the field `$engine` answers. Left
/// to the provider: `progress`, `next_deadline`, `wait_fds`.
macro_rules! verbs_of_engine {
    ($engine:ident) => {
        fn caps(&self) -> $crate::rdma::verbs::DeviceCaps {
            self.$engine.caps()
        }
        fn alloc_pd(&mut self) -> Result<$crate::rdma::verbs::PdId, $crate::rdma::verbs::VerbsError> {
            self.$engine.alloc_pd()
        }
        fn register(
            &mut self,
            pd: $crate::rdma::verbs::PdId,
            region: &reactors::memory::Region,
            access: $crate::rdma::verbs::Access,
        ) -> Result<$crate::rdma::verbs::MrKeys, $crate::rdma::verbs::VerbsError> {
            self.$engine.register(pd, region, access)
        }
        fn deregister(
            &mut self,
            lkey: $crate::wire::num::LKey,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.deregister(lkey)
        }
        fn create_cq(
            &mut self,
            depth: u32,
        ) -> Result<$crate::rdma::verbs::CqId, $crate::rdma::verbs::VerbsError> {
            self.$engine.create_cq(depth)
        }
        fn destroy_cq(
            &mut self,
            cq: $crate::rdma::verbs::CqId,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.destroy_cq(cq)
        }
        fn destroy_srq(
            &mut self,
            srq: $crate::rdma::verbs::SrqId,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.destroy_srq(srq)
        }
        fn posted_srq_recvs(&self, srq: $crate::rdma::verbs::SrqId) -> Option<u32> {
            self.$engine.posted_srq_recvs(srq)
        }
        fn create_srq(
            &mut self,
            pd: $crate::rdma::verbs::PdId,
            depth: u32,
        ) -> Result<$crate::rdma::verbs::SrqId, $crate::rdma::verbs::VerbsError> {
            self.$engine.create_srq(pd, depth)
        }
        fn arm_srq_limit(
            &mut self,
            srq: $crate::rdma::verbs::SrqId,
            limit: u32,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.arm_srq_limit(srq, limit)
        }
        fn create_qp(
            &mut self,
            init: &$crate::rdma::verbs::QpInit,
        ) -> Result<$crate::rdma::verbs::QpId, $crate::rdma::verbs::VerbsError> {
            self.$engine.create_qp(init)
        }
        fn qpn(
            &self,
            qp: $crate::rdma::verbs::QpId,
        ) -> Result<$crate::wire::num::Qpn, $crate::rdma::verbs::VerbsError> {
            self.$engine.qpn(qp)
        }
        fn qp_state(
            &self,
            qp: $crate::rdma::verbs::QpId,
        ) -> Result<$crate::rdma::verbs::QpState, $crate::rdma::verbs::VerbsError> {
            self.$engine.qp_state(qp)
        }
        fn modify_qp(
            &mut self,
            now: reactors::time::Time,
            qp: $crate::rdma::verbs::QpId,
            change: &$crate::rdma::verbs::QpModify,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.modify_qp(now, qp, change)
        }
        fn retire_qp(
            &mut self,
            now: reactors::time::Time,
            qp: $crate::rdma::verbs::QpId,
            how: $crate::rdma::verbs::Retire,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.retire_qp(now, qp, how)
        }
        fn destroy_qp(
            &mut self,
            now: reactors::time::Time,
            qp: $crate::rdma::verbs::QpId,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.destroy_qp(now, qp)
        }
        #[inline]
        fn post_send(
            &mut self,
            now: reactors::time::Time,
            qp: $crate::rdma::verbs::QpId,
            wr: &$crate::rdma::verbs::SendWr,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.post_send(now, qp, wr)
        }
        fn confirm_send(&mut self, now: reactors::time::Time, qp: $crate::rdma::verbs::QpId, wr_id: u64) {
            self.$engine.confirm_send(now, qp, wr_id);
        }
        fn post_recv(
            &mut self,
            qp: $crate::rdma::verbs::QpId,
            wr: &$crate::rdma::verbs::RecvWr,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.post_recv(qp, wr)
        }
        #[inline]
        fn post_srq_recv(
            &mut self,
            srq: $crate::rdma::verbs::SrqId,
            wr: &$crate::rdma::verbs::RecvWr,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$engine.post_srq_recv(srq, wr)
        }
        #[inline]
        fn poll_cq(&mut self, cq: $crate::rdma::verbs::CqId, into: &mut [$crate::rdma::verbs::Wc]) -> usize {
            self.$engine.poll_cq(cq, into)
        }
        fn poll_event(&mut self) -> Option<$crate::rdma::verbs::AsyncEvent> {
            self.$engine.poll_event()
        }
        fn last_heard(
            &self,
            qp: $crate::rdma::verbs::QpId,
        ) -> Result<reactors::time::Time, $crate::rdma::verbs::VerbsError> {
            self.$engine.last_heard(qp)
        }
    };
}

/// Items of `impl verbs::Connections`: every call that the connection manager answers, which the
/// provider's method `$cm` gives or refuses. Left to the provider: `connect`, `poll_conn`.
macro_rules! connections_of_cm {
    ($cm:ident) => {
        fn listen(
            &mut self,
            local: Option<std::net::IpAddr>,
            service: $crate::rdma::verbs::Service,
        ) -> Result<$crate::rdma::verbs::ListenerId, $crate::rdma::verbs::VerbsError> {
            self.$cm()?.listen(local, service)
        }
        fn unlisten(
            &mut self,
            listener: $crate::rdma::verbs::ListenerId,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$cm()?.unlisten(listener)
        }
        fn accept(
            &mut self,
            now: reactors::time::Time,
            conn: $crate::rdma::verbs::ConnId,
            reply: &$crate::rdma::verbs::ConnReply,
            private: &[u8],
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$cm()?.accept(now, conn, reply, private)
        }
        fn reject(
            &mut self,
            now: reactors::time::Time,
            conn: $crate::rdma::verbs::ConnId,
            reason: u16,
            private: &[u8],
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$cm()?.reject(now, conn, reason, private)
        }
        fn established(
            &mut self,
            now: reactors::time::Time,
            conn: $crate::rdma::verbs::ConnId,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$cm()?.established(now, conn)
        }
        fn disconnect(
            &mut self,
            now: reactors::time::Time,
            conn: $crate::rdma::verbs::ConnId,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$cm()?.disconnect(now, conn)
        }
        fn farewell_of(
            &mut self,
            conn: $crate::rdma::verbs::ConnId,
        ) -> Option<$crate::rdma::verbs::Farewell> {
            self.$cm().ok()?.farewell_of(conn)
        }
        fn say_farewell(
            &mut self,
            now: reactors::time::Time,
            farewell: &$crate::rdma::verbs::Farewell,
        ) -> Result<(), $crate::rdma::verbs::VerbsError> {
            self.$cm()?.say_farewell(now, farewell)
        }
    };
}

pub(super) use {connections_of_cm, verbs_of_engine};
