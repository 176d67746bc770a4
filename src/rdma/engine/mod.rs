//! Floor 2, sans-io: the reliable-connection engine: queue pairs, memory regions, queues, timers.
