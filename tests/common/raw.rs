//! A peer made by hand: RoCEv2 packets, CM messages and SRP information units out of a plain UDP
//! socket, so that a test can say exactly what goes out and what comes back. It keeps the rules only
//! where it is told to.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use srpoll::rdma::soft::ROCE_PORT;
use srpoll::wire::bth::{Bth, Opcode, Operation};
use srpoll::wire::cm::{CmMad, CmaHeader, CommId, Dreq, Gid, Message, Rej, Req, Rtu, rdma_cm};
use srpoll::wire::ext::{Aeth, Deth, Reth, Syndrome};
use srpoll::wire::icrc::{ICRC_LEN, Prefix};
use srpoll::wire::num::{Psn, Qpn};
use srpoll::wire::packet::{Ext, Packet};
use srpoll::wire::srp::{BufferFormats, LoginReq, LoginRsp, PortId, Rsp, RspHeader, Tag};

/// How long an answer may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Payload bytes of our packets.
pub(crate) const MTU: usize = 1024;
/// The service port of every target here.
pub(crate) const PORT: u16 = 5555;

/// UDP port 4791 of one address, and whom it talks to.
pub(crate) struct Wire {
    pub(crate) socket: UdpSocket,
    pub(crate) local: IpAddr,
    pub(crate) target: IpAddr,
    prefix: Prefix,
}

/// A packet that came, its ICRC right.
#[derive(Clone, Debug)]
pub(crate) struct Came {
    pub(crate) bth: Bth,
    pub(crate) ext: Ext,
    pub(crate) payload: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(local: IpAddr, target: IpAddr) -> Wire {
        Wire::from_port(local, target, ROCE_PORT)
    }

    /// From another source port; answers do not come there.
    pub(crate) fn from_port(local: IpAddr, target: IpAddr, port: u16) -> Wire {
        let socket = UdpSocket::bind((local, port)).unwrap();
        let port = socket.local_addr().unwrap().port();
        let prefix = Prefix::new(local, target, port, ROCE_PORT).unwrap();
        Wire { socket, local, target, prefix }
    }

    /// Sends bytes as they are.
    pub(crate) fn send_bytes(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, SocketAddr::new(self.target, ROCE_PORT)).unwrap();
    }

    /// Sends BTH to pad; the ICRC is added. An unconnected socket's packets have ID 0.
    pub(crate) fn send_ib(&self, ib: &[u8]) {
        let mut datagram = ib.to_vec();
        datagram.extend_from_slice(&self.prefix.icrc(ib, 0));
        self.send_bytes(&datagram);
    }

    pub(crate) fn send(&self, bth: Bth, ext: Ext, payload: &[u8]) {
        let bth = Bth { pad: Bth::pad_for(payload.len()), ..bth };
        let pad = &[0; 3][..usize::from(bth.pad)];
        let mut ib = [0; 2 * MTU];
        let len = Packet { bth, ext, payload, pad }.emit(&mut ib);
        self.send_ib(&ib[..len]);
    }

    pub(crate) fn send_mad_bytes(&self, mad: &[u8]) {
        self.send(Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(7)), Ext::Deth(Deth::GSI), mad);
    }

    pub(crate) fn send_mad(&self, mad: &CmMad) {
        self.send_mad_bytes(&mad.emit());
    }

    /// The next packet, if one comes in time.
    pub(crate) fn recv(&self, within: Duration) -> Option<Came> {
        let deadline = Instant::now() + within;
        let from_target = Prefix::new(self.target, self.local, ROCE_PORT, ROCE_PORT).unwrap();
        let mut buffer = [0; 9000];
        loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
            let Ok((len, from)) = self.socket.recv_from(&mut buffer) else { continue };
            if from.ip() != self.target {
                continue;
            }
            let prefix = Prefix::new(self.target, self.local, from.port(), ROCE_PORT);
            let right = prefix.unwrap_or(from_target).solve_id(&buffer[..len], 0);
            assert!(right.is_some_and(|id| id < 128), "a packet of the target with a wrong ICRC");
            let packet = Packet::parse(&buffer[..len - ICRC_LEN]).unwrap();
            return Some(Came { bth: packet.bth, ext: packet.ext, payload: packet.payload.to_vec() });
        }
    }

    /// The next CM message, if one comes in time. What else comes is dropped.
    pub(crate) fn recv_mad(&self, within: Duration) -> Option<CmMad> {
        let deadline = Instant::now() + within;
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let came = self.recv(left)?;
            if came.bth.opcode == Opcode::UdSendOnly {
                return Some(CmMad::parse(&came.payload).unwrap());
            }
        }
        None
    }

    /// The REJ that answers a request.
    pub(crate) fn expect_rej(&self, what: &str) -> Rej {
        match self.recv_mad(PATIENCE).unwrap_or_else(|| panic!("{what}: no answer")).message {
            Message::Rej(rej) => rej,
            other => panic!("{what}: answered with {other:?}"),
        }
    }
}

/// A login as ib_srp asks for it.
pub(crate) fn login(initiator: u64) -> LoginReq {
    LoginReq {
        tag: Tag(*b"loginreq"),
        max_it_iu_bytes: 8260,
        formats: BufferFormats::BOTH,
        flags: LoginReq::IMMEDIATE,
        immediate_offset: 68,
        initiator: PortId::new(0xbad0_0000_0000_0000, initiator),
        target: PortId::UNSPECIFIED,
    }
}

/// The REQ of a login at the target's RDMA-CM service.
pub(crate) fn req(wire: &Wire, number: u32, login: &LoginReq) -> Req {
    let mut private_data = [0; 92];
    let mut head = [0; 36];
    CmaHeader::new(wire.local, wire.target, 0xc123).unwrap().emit(&mut head);
    private_data[..36].copy_from_slice(&head);
    private_data[36..].copy_from_slice(&login.emit_compact());
    Req {
        local_id: CommId(0x1000 + number),
        service_id: rdma_cm::service_id(PORT),
        local_ca_guid: 0xbad0_0000_0000_0001,
        local_qpn: Qpn::new(0x100 + number),
        responder_resources: 4,
        initiator_depth: 0,
        // 0.5 s; once again.
        remote_cm_timeout: 17,
        local_cm_timeout: 17,
        max_cm_retries: 1,
        flow_control: true,
        starting_psn: Psn::new(0xff_fffe),
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: 3,
        rnr_retry: 7,
        local_lid: 0xffff,
        remote_lid: 0xffff,
        local_gid: Gid::from(wire.local),
        remote_gid: Gid::from(wire.target),
        hop_limit: 64,
        ack_timeout: 17,
        private_data,
        ..Req::default()
    }
}

/// What a connected peer sees.
#[derive(Clone, Debug)]
pub(crate) enum Seen {
    /// The answer to one of our requests.
    Reply { psn: Psn, syndrome: Syndrome },
    /// An information unit.
    Iu(Vec<u8>),
    /// The target wants memory of ours.
    ReadRequest { psn: Psn, reth: Reth },
    /// The target wrote memory of ours.
    Write { reth: Reth, payload: Vec<u8> },
    /// A message about the connection.
    Cm(Message),
}

/// A logged-in peer. SENDs and WRITEs of the target are acknowledged; the rest is up to the test.
pub(crate) struct Peer {
    pub(crate) wire: Wire,
    pub(crate) number: u32,
    pub(crate) dest_qpn: Qpn,
    pub(crate) login: LoginRsp,
    their_id: CommId,
    /// Our next PSN.
    pub(crate) psn: Psn,
    /// The target's next PSN.
    expected: Psn,
    msn: u32,
    seen: VecDeque<Seen>,
}

impl Peer {
    /// Logs in; the REJ if the target says no.
    pub(crate) fn connect(wire: Wire, number: u32, login: &LoginReq) -> Result<Peer, Box<Rej>> {
        let request = req(&wire, number, login);
        wire.send_mad(&CmMad::new(1, request));
        let rep = loop {
            match wire.recv_mad(PATIENCE).expect("an answer to a login").message {
                Message::Rep(rep) if rep.remote_id == request.local_id => break rep,
                Message::Rej(rej) if rej.remote_id == request.local_id => return Err(Box::new(rej)),
                // For a connection that was here before.
                _ => {}
            }
        };
        wire.send_mad(&CmMad::new(
            1,
            Rtu { local_id: rep.remote_id, remote_id: rep.local_id, ..Rtu::default() },
        ));
        Ok(Peer {
            number,
            dest_qpn: rep.local_qpn,
            login: LoginRsp::parse(&rep.private_data).unwrap(),
            their_id: rep.local_id,
            psn: rep.starting_psn,
            expected: request.starting_psn,
            msn: 0,
            seen: VecDeque::new(),
            wire,
        })
    }

    fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth { ack_req: true, ..Bth::new(opcode, self.dest_qpn, psn) }
    }

    /// One request packet with the next PSN.
    pub(crate) fn packet(&mut self, opcode: Opcode, ext: Ext, payload: &[u8]) {
        self.wire.send(self.bth(opcode, self.psn), ext, payload);
        self.psn = self.psn.plus(1);
    }

    /// One packet with whatever is in `bth` and `ext`.
    pub(crate) fn odd_packet(&self, bth: Bth, ext: Ext, payload: &[u8]) {
        self.wire.send(bth, ext, payload);
    }

    /// SENDs an information unit.
    pub(crate) fn send_iu(&mut self, iu: &[u8]) {
        let parts: Vec<&[u8]> = if iu.is_empty() { vec![iu] } else { iu.chunks(MTU).collect() };
        let last = parts.len() - 1;
        for (place, part) in parts.into_iter().enumerate() {
            let opcode = match (place == 0, place == last) {
                (true, true) => Opcode::SendOnly,
                (true, false) => Opcode::SendFirst,
                (false, true) => Opcode::SendLast,
                (false, false) => Opcode::SendMiddle,
            };
            self.packet(opcode, Ext::None, part);
        }
    }

    /// ACK or NAK for a packet of the target.
    pub(crate) fn reply(&self, psn: Psn, syndrome: Syndrome) {
        let bth = Bth::new(Opcode::Acknowledge, self.dest_qpn, psn);
        self.wire.send(bth, Ext::Aeth(Aeth { syndrome, msn: self.msn }), &[]);
    }

    /// Answers a READ with `data`, in one packet.
    pub(crate) fn read_response(&self, psn: Psn, data: &[u8]) {
        let bth = Bth::new(Opcode::ReadResponseOnly, self.dest_qpn, psn);
        self.wire.send(bth, Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: self.msn }), data);
    }

    /// Answers a READ with all of `data`.
    pub(crate) fn read_response_of(&self, psn: Psn, data: &[u8]) {
        let parts: Vec<&[u8]> = data.chunks(MTU).collect();
        let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::ACK, msn: self.msn });
        let last = parts.len() - 1;
        for (place, part) in parts.into_iter().enumerate() {
            let (opcode, ext) = match (place == 0, place == last) {
                (true, true) => (Opcode::ReadResponseOnly, aeth),
                (true, false) => (Opcode::ReadResponseFirst, aeth),
                (false, true) => (Opcode::ReadResponseLast, aeth),
                (false, false) => (Opcode::ReadResponseMiddle, Ext::None),
            };
            self.wire.send(Bth::new(opcode, self.dest_qpn, psn.plus(place as u32)), ext, part);
        }
    }

    /// The next thing that the target does, if it does one in time.
    pub(crate) fn next(&mut self, within: Duration) -> Option<Seen> {
        let deadline = Instant::now() + within;
        while self.seen.is_empty() {
            let left = deadline.checked_duration_since(Instant::now())?;
            let came = self.wire.recv(left)?;
            self.take(came);
        }
        self.seen.pop_front()
    }

    fn take(&mut self, came: Came) {
        let psn = came.bth.psn;
        let operation = came.bth.opcode.operation();
        if ![Qpn::GSI, Qpn::new(0x100 + self.number)].contains(&came.bth.dest_qpn) {
            // For a queue pair that was here before.
            return;
        }
        if let (Operation::Acknowledge, Ext::Aeth(aeth)) = (operation, came.ext) {
            self.seen.push_back(Seen::Reply { psn, syndrome: aeth.syndrome });
            return;
        }
        if operation == Operation::Datagram {
            self.seen.push_back(Seen::Cm(CmMad::parse(&came.payload).unwrap().message));
            return;
        }
        let distance = psn.distance_from(self.expected);
        if distance > 0 {
            return self.reply(self.expected, Syndrome::Nak(srpoll::wire::ext::NakCode::PsnSequenceError));
        }
        if distance == 0 {
            let reth = match came.ext {
                Ext::Reth(reth) => reth,
                _ => Reth { addr: 0, rkey: Default::default(), len_bytes: 0 },
            };
            if operation == Operation::ReadRequest {
                self.expected = psn.plus((reth.len_bytes as usize).div_ceil(MTU).max(1) as u32);
                self.seen.push_back(Seen::ReadRequest { psn, reth });
                return;
            }
            self.expected = psn.plus(1);
            self.msn += u32::from(came.bth.opcode.position().ends());
            match operation {
                Operation::Send => self.seen.push_back(Seen::Iu(came.payload)),
                // Probes are no news.
                Operation::Write if reth.len_bytes > 0 => {
                    self.seen.push_back(Seen::Write { reth, payload: came.payload });
                }
                _ => {}
            }
        }
        // A duplicate READ is the test's to answer or not.
        if came.bth.ack_req && operation != Operation::ReadRequest {
            self.reply(self.expected.minus(1), Syndrome::ACK);
        }
    }

    /// The next thing that `pick` picks; everything before it is dropped.
    pub(crate) fn until<T>(&mut self, what: &str, mut pick: impl FnMut(Seen) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(seen) = self.next(left) else { panic!("{what}: it did not come") };
            if let Some(picked) = pick(seen) {
                return picked;
            }
        }
    }

    /// The next SRP_RSP: its header and sense data (key, code and qualifier).
    pub(crate) fn response(&mut self, what: &str) -> (RspHeader, Option<(u8, u8, u8)>) {
        self.until(what, |seen| {
            let Seen::Iu(iu) = seen else { return None };
            let rsp = Rsp::parse(&iu).unwrap();
            let sense = (!rsp.sense.is_empty()).then(|| (rsp.sense[2] & 0xf, rsp.sense[12], rsp.sense[13]));
            Some((rsp.header, sense))
        })
    }

    /// The next NAK.
    pub(crate) fn nak(&mut self, what: &str) -> (Psn, Syndrome) {
        self.until(what, |seen| match seen {
            Seen::Reply { syndrome: Syndrome::Ack { .. }, .. } => None,
            Seen::Reply { psn, syndrome } => Some((psn, syndrome)),
            _ => None,
        })
    }

    /// That the target ends the connection: its DREQ, which is answered.
    pub(crate) fn dreq(&mut self, what: &str) {
        let ours = self.our_id();
        let dreq = self.until(what, |seen| match seen {
            Seen::Cm(Message::Dreq(dreq)) if dreq.remote_id == ours => Some(dreq),
            _ => None,
        });
        assert_eq!(dreq.local_id, self.their_id, "{what}");
        assert_eq!(dreq.remote_qpn, Qpn::new(0x100 + self.number), "{what}: a DREQ names our queue pair");
        let drep = srpoll::wire::cm::Drep {
            local_id: dreq.remote_id,
            remote_id: dreq.local_id,
            ..Default::default()
        };
        self.wire.send_mad(&CmMad::new(2, drep));
    }

    pub(crate) fn our_id(&self) -> CommId {
        CommId(0x1000 + self.number)
    }

    /// A DREQ as it should be.
    pub(crate) fn good_dreq(&self) -> Dreq {
        Dreq {
            local_id: self.our_id(),
            remote_id: self.their_id,
            remote_qpn: self.dest_qpn,
            ..Dreq::default()
        }
    }

    /// Logs out by DREQ, and waits for the DREP.
    pub(crate) fn log_out(mut self) {
        self.wire.send_mad(&CmMad::new(3, self.good_dreq()));
        self.until("a DREP", |seen| matches!(seen, Seen::Cm(Message::Drep(_))).then_some(()));
    }
}
