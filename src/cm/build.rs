//! The messages that we send, from the values that they are made of.

use super::config::CmConfig;
use super::conn::Conn;
use crate::rdma::verbs::{ConnReply, ConnectAttr, Service, VerbsError};
use crate::wire::bth::DEFAULT_PKEY;
use crate::wire::cm::{CmaHeader, CommId, Dreq, Gid, Mra, Rej, Rep, Req, Rtu, rdma_cm, reason};

/// What stands for a LID on RoCEv2.
const NO_LID: u16 = 0xffff;
/// Hop limit of a REQ on RoCEv2, inside one subnet too.
const HOP_LIMIT: u8 = 64;
/// Time code that we name in an MRA: 8.6 s.
const SERVICE_TIMEOUT_CODE: u8 = 21;

/// The bytes as a message's private data; zero behind them.
fn private<const N: usize>(bytes: &[u8]) -> Result<[u8; N], VerbsError> {
    let mut field = [0; N];
    field.get_mut(..bytes.len()).ok_or(VerbsError::Invalid("private data too long"))?.copy_from_slice(bytes);
    Ok(field)
}

/// REQ. `flow_label` has 20 bits; from it rxe derives its source port.
pub(super) fn req(
    config: &CmConfig,
    attr: &ConnectAttr,
    local_id: CommId,
    flow_label: u32,
    source_port: u16,
) -> Result<Req, VerbsError> {
    let consumer = attr.private_data.as_slice();
    let (service_id, private_data) = match attr.service {
        Service::Shm => return Err(super::core::NO_SHM),
        Service::IbCm { service_id } => (service_id, private(consumer)?),
        Service::RdmaCm { port } => {
            let header = CmaHeader::new(attr.path.local, attr.path.remote, source_port)
                .ok_or(VerbsError::Invalid("the addresses of a path are of two families"))?;
            let behind: [u8; 56] = private(consumer)?;
            let mut data = [0; 92];
            let mut head = [0; CmaHeader::LEN];
            header.emit(&mut head);
            data[..CmaHeader::LEN].copy_from_slice(&head);
            data[CmaHeader::LEN..].copy_from_slice(&behind);
            (rdma_cm::service_id(port), data)
        }
    };
    Ok(Req {
        local_id,
        service_id,
        local_ca_guid: config.guid,
        local_qpn: attr.qpn,
        responder_resources: attr.responder_resources,
        initiator_depth: attr.initiator_depth,
        remote_cm_timeout: config.cm_timeout_code,
        flow_control: true,
        starting_psn: attr.starting_psn,
        local_cm_timeout: config.cm_timeout_code,
        retry_count: attr.retry_count,
        pkey: DEFAULT_PKEY,
        path_mtu: attr.path_mtu.code(),
        rnr_retry: attr.rnr_retry,
        max_cm_retries: config.max_cm_retries,
        local_lid: NO_LID,
        remote_lid: NO_LID,
        local_gid: Gid::from(attr.path.local),
        remote_gid: Gid::from(attr.path.remote),
        flow_label,
        hop_limit: HOP_LIMIT,
        ack_timeout: config.ack_timeout_code,
        private_data,
        ..Req::default()
    })
}

/// REP.
pub(super) fn rep(
    config: &CmConfig,
    conn: &Conn,
    reply: &ConnReply,
    consumer: &[u8],
) -> Result<Rep, VerbsError> {
    Ok(Rep {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        local_qpn: reply.qpn,
        starting_psn: reply.starting_psn,
        responder_resources: reply.responder_resources,
        initiator_depth: reply.initiator_depth,
        target_ack_delay: config.ack_delay_code,
        flow_control: true,
        rnr_retry: reply.rnr_retry,
        local_ca_guid: config.guid,
        private_data: private(consumer)?,
        ..Rep::default()
    })
}

/// RTU.
pub(super) fn rtu(conn: &Conn) -> Rtu {
    Rtu { local_id: conn.local_id, remote_id: conn.remote_id.unwrap_or_default(), ..Rtu::default() }
}

/// MRA: our consumer still works on the message that `about` names.
pub(super) fn mra(conn: &Conn, about: u8) -> Mra {
    Mra {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        about,
        service_timeout: SERVICE_TIMEOUT_CODE,
        ..Mra::default()
    }
}

/// REJ, from its reason and the consumer's bytes.
pub(super) fn rej(
    local_id: CommId,
    remote_id: CommId,
    about: u8,
    reason: u16,
    consumer: &[u8],
) -> Result<Rej, VerbsError> {
    Ok(Rej { local_id, remote_id, about, reason, private_data: private(consumer)?, ..Rej::default() })
}

/// REJ "timeout": we have given up. Our GUID goes with it, by which a peer finds the connection
/// whose reply we may never have seen (IBTA vol. 1, table 107, code 4).
pub(super) fn rej_timeout(config: &CmConfig, conn: &Conn, about: u8) -> Rej {
    let mut info = [0; 72];
    info[..8].copy_from_slice(&config.guid.to_be_bytes());
    Rej {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        about,
        info_len_bytes: 8,
        reason: reason::TIMEOUT,
        info,
        ..Rej::default()
    }
}

/// DREQ.
pub(super) fn dreq(conn: &Conn) -> Dreq {
    Dreq {
        local_id: conn.local_id,
        remote_id: conn.remote_id.unwrap_or_default(),
        remote_qpn: conn.peer.map(|peer| peer.qpn).unwrap_or_default(),
        ..Dreq::default()
    }
}
