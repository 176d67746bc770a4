//! QPN 1: management datagrams in UD packets, and the connection manager behind them.

use reactors::time::Time;

use super::device::Device;
use super::transmit::Transmitter;
use crate::cm::{Cm, CmConfig};
use crate::rdma::verbs::{ConnEvent, ConnId, ConnectAttr, Connections, Path, VerbsError};
use crate::wire::bth::{Bth, Opcode};
use crate::wire::ext::Deth;
use crate::wire::mad::MAD_LEN;
use crate::wire::num::{Psn, Qpn};
use crate::wire::packet::{Ext, Packet};

/// The Q_Key of every QP1 (IBTA vol. 1, 10.2.5).
const GSI_QKEY: u32 = 0x8001_0000;
const PACKET_BYTES: usize = Bth::LEN + Deth::LEN + MAD_LEN;

/// The general services interface of a device.
pub(super) struct Gsi {
    pub(super) cm: Cm,
    psn: Psn,
    /// The consumer has done something since the last transmission.
    touched: bool,
}

impl Gsi {
    pub(super) fn new(config: CmConfig, mut rng: fastrand::Rng) -> Gsi {
        let psn = Psn::new(rng.u32(..));
        Gsi { cm: Cm::new(config, rng), psn, touched: false }
    }

    /// Takes a packet to QPN 1; false if it is no management datagram.
    pub(super) fn receive(&mut self, now: Time, path: Path, ib: &[u8]) -> bool {
        let Ok(Packet { ext: Ext::Deth(deth), payload, .. }) = Packet::parse(ib) else { return false };
        if deth.qkey != GSI_QKEY || payload.len() != MAD_LEN {
            return false;
        }
        self.touched = true;
        self.cm.handle_mad(now, path, payload);
        true
    }

    /// Does what is due; true if something was.
    pub(super) fn handle_timeout(&mut self, now: Time) -> bool {
        let due = self.cm.deadline() <= now;
        if due {
            self.cm.handle_timeout(now);
        }
        due
    }

    /// When there is something to do.
    pub(super) fn deadline(&self) -> Time {
        if self.touched { Time::ZERO } else { self.cm.deadline() }
    }

    /// Sends all that waits; gives the number of packets.
    pub(super) fn transmit(&mut self, transmitter: &mut Transmitter<'_>) -> usize {
        self.touched = false;
        let mut sent = 0;
        while let Some((path, mad)) = self.cm.poll_transmit() {
            let mut ib = [0; PACKET_BYTES];
            let packet = Packet {
                bth: Bth::new(Opcode::UdSendOnly, Qpn::GSI, self.psn),
                ext: Ext::Deth(Deth { qkey: GSI_QKEY, reserved: 0, src_qpn: Qpn::GSI }),
                payload: &mad,
                pad: &[],
            };
            packet.emit(&mut ib);
            self.psn = self.psn.plus(1);
            transmitter.bytes(&path, Qpn::GSI, &ib);
            sent += 1;
        }
        sent
    }
}

impl Device {
    fn cm(&mut self) -> Result<&mut Cm, VerbsError> {
        let gsi = self.gsi.as_mut().ok_or(VerbsError::NotFound("connection manager on this shard"))?;
        gsi.touched = true;
        Ok(&mut gsi.cm)
    }
}

/// On the shard that has the connection manager; on others every call is an error.
impl Connections for Device {
    crate::rdma::forward::connections_of_cm!(cm);

    fn connect(&mut self, now: Time, attr: &ConnectAttr) -> Result<ConnId, VerbsError> {
        let local = attr.path.local.to_canonical();
        if !self.addresses().any(|address| address == local) {
            return Err(VerbsError::NotFound("port with the local address"));
        }
        let attr = ConnectAttr { path: self.scoped(&attr.path), ..*attr };
        self.cm()?.connect(now, &attr)
    }
    fn poll_conn(&mut self) -> Option<ConnEvent> {
        self.gsi.as_mut()?.cm.poll_event()
    }
}
