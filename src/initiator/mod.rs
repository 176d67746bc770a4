//! Floor 4: a user-space SRP initiator: what `perf`, the tests and the fio engine drive.
