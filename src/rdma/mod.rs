//! RDMA: the verbs interface, the sans-io RC engine, and the providers.
//!
//! * [`verbs`] (floor 1): traits and plain types that providers implement.
//! * [`engine`] (floor 2, sans-io): the RC protocol engine.
//! * `soft`, `sim` (floor 3): providers on top of the engine; `shm`: one that needs none.
//! * `ibv` (floor 3, with the cargo feature of that name): RDMA adapters by libibverbs.

pub mod engine;
mod forward;
#[cfg(feature = "ibv")]
pub mod ibv;
pub mod shm;
pub mod sim;
pub mod soft;
pub mod verbs;

/// How many low bits of a QPN tell which of so many shards owns it.
pub fn shard_bits(shards: usize) -> u32 {
    shards.next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests {
    use super::shard_bits;

    #[test]
    fn bits_enough_for_every_shard() {
        assert_eq!((1..=5).map(shard_bits).collect::<Vec<_>>(), [0, 1, 2, 2, 3]);
    }
}
