//! Pairs of devices over real sockets and real shared memory, driven by the test's thread.

mod ends;
mod hostile;
mod rig;
mod traffic;
