//! Floor 3: stand-ins for the network and for adapters, all of them seeded and on a virtual clock.
//!
//! * [`net`]: a network at the datagram seam that loses, repeats, reorders, delays, corrupts and
//!   parts, and a world of endpoints on it
//! * [`device`]: a provider on that network, for the target and the initiator as they are
//! * [`scripted`]: an adapter at the verbs seam that misbehaves as told

pub mod device;
pub mod net;
pub mod scripted;
