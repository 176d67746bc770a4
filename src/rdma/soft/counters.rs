//! What the datagram floor counts.

macro_rules! named {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: u64,)* }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: u64,)* }

        impl $name {
            /// All of them, by name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field)),*]
            }
        }
    };
}

named! {
/// Plain counters of a soft [`Device`](super::Device) since its start; they only grow. What
/// becomes of packets above this floor is counted by the engine and the connection manager.
pub struct Counters {
    /// `recvmsg` calls, those that found nothing among them.
    pub recv_calls: u64,
    /// Datagrams received; one that was merged by the kernel (GRO) counts once.
    pub recv_datagrams: u64,
    /// Packets received: segments of datagrams.
    pub recv_packets: u64,
    /// Bytes of the packets received.
    pub recv_bytes: u64,
    /// `recvmsg` calls that failed, other than for want of datagrams.
    pub recv_errors: u64,
    /// Datagrams dropped because they were longer than the buffer.
    pub truncated: u64,
    /// Packets dropped: shorter than a packet can be, or no multiple of four.
    pub bad_length: u64,
    /// Packets dropped: no IPv4 identification makes their ICRC right, or on IPv6 it is wrong.
    pub bad_icrc: u64,
    /// Packets dropped: the ICRC fits an IPv4 identification far from what this peer uses.
    pub unlikely_id: u64,
    /// Peers whose identifications follow no order, so that only 16 bits of the ICRC count.
    pub unpredictable_peers: u64,
    /// Packets to QPN 1.
    pub gsi_packets: u64,
    /// Packets to QPN 1 that are no MAD for the connection manager.
    pub bad_gsi: u64,
    /// Packets handed over to the shard that they are for.
    pub handed_over: u64,
    /// Packets that another shard handed over to this one.
    pub taken_over: u64,
    /// Packets lost because the other shard's ring was full, or because there is no such shard.
    pub handover_lost: u64,
    /// `sendmsg` calls.
    pub send_calls: u64,
    /// Packets in them.
    pub sent_packets: u64,
    /// Bytes in them.
    pub sent_bytes: u64,
    /// Calls that carried more than one packet.
    pub sent_trains: u64,
    /// Packets lost because the send buffer was full.
    pub send_full: u64,
    /// Packets lost because the kernel refused them.
    pub send_errors: u64,
    /// Packets lost because we have no port on their source address (any more).
    pub no_port: u64,
    /// Packets that went from one queue pair of this device to another.
    pub looped: u64,
    /// Peers to which segmented sends were stopped, because only first segments arrived.
    pub segmenting_stopped: u64,
    /// Packets that the fault shim dropped, doubled, held back or corrupted.
    pub faults: u64,
}
}
