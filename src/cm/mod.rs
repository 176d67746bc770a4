//! Floor 2, sans-io: the InfiniBand connection manager on QP1, with the RDMA-CM header.
//!
//! It knows MADs, communication ids, timers of connections. It must not know queue pairs
//! beyond their numbers, nor SRP: private data are opaque bytes.
