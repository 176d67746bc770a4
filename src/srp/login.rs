//! Whether a login is accepted, and with what parameters (SRP r16a, 5.2 and 6.2 to 6.4).
//!
//! A pure decision: request, limits and what the target has left go in; the answer comes out.

use crate::wire::srp::{BufferFormats, Cmd, LoginRej, LoginReq, LoginRsp, MultiChannel, PortId, RejReason};

/// Shortest longest IU that a login may ask for, in bytes: what LIO takes at least.
pub const MIN_IT_IU_BYTES: u32 = 64;

/// What the target offers to any login.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LoginLimits {
    /// Longest IU that a receive slot holds, in bytes.
    pub max_it_iu_bytes: u32,
    /// Longest IU that we send, in bytes.
    pub max_ti_iu_bytes: u32,
    /// Credits that a channel gets if there are enough.
    pub credits: u32,
    /// Credits under which a login is refused; at least 2, since ib_srp keeps one for task
    /// management.
    pub min_credits: u32,
    /// Receive slots of a channel beyond its credits, for IUs that cost none.
    pub control_slots: u32,
    /// Whether a nexus may have several channels.
    pub multi_channel: bool,
    /// Most channels of one nexus.
    pub max_channels_per_nexus: u32,
    /// Whether immediate data are granted.
    pub immediate: bool,
}

/// What the target knows at the moment of a login.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LoginContext {
    /// Our port identifier.
    pub target: PortId,
    /// Whether the target takes logins at all.
    pub enabled: bool,
    /// Whether the access list has the initiator.
    pub allowed: bool,
    /// Channels that the nexus has now.
    pub nexus_channels: u32,
    /// Channels (queue pairs) that can still be made, this one included.
    pub channels_left: u32,
    /// Sessions that can still be made; counts if the nexus has no channel yet.
    pub sessions_left: u32,
    /// Receive slots of the shard that no channel has been promised.
    pub slots_left: u32,
}

/// The agreed parameters of a channel.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ChannelParams {
    /// Credits granted.
    pub credits: u32,
    /// Longest IU that the peer may send, in bytes.
    pub max_it_iu_bytes: u32,
    /// Longest IU that we may send, in bytes.
    pub max_ti_iu_bytes: u32,
    /// Where immediate data begin, if they were granted.
    pub immediate_offset: Option<u16>,
    /// The request's `*_SOLICITED` flags.
    pub solicited_flags: u8,
}

impl ChannelParams {
    /// Whether a CRED_REQ is to be a solicited event.
    pub const fn credit_solicited(&self) -> bool {
        self.solicited_flags & LoginReq::CREDIT_SOLICITED != 0
    }
}

/// A login that is accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The answer, for the CM REP.
    pub response: LoginRsp,
    /// Its parameters.
    pub params: ChannelParams,
    /// End the nexus's other channels first (SINGLE).
    pub terminate_others: bool,
    /// Receive slots that this channel takes: credits and control slots.
    pub slots: u32,
}

/// Why a login is refused, in our words.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request has a reserved MULTI-CHANNEL ACTION.
    #[error("multi-channel action {0} is reserved")]
    ReservedAction(u8),
    /// Another target is meant.
    #[error("target port id {0} is not this target")]
    UnknownTarget(PortId),
    /// The target takes no logins now.
    #[error("the target is disabled")]
    Disabled,
    /// The IUs are too long or senselessly short.
    #[error("asked for information units of {asked} bytes, {MIN_IT_IU_BYTES} to {max} are possible")]
    IuLength {
        /// What was asked for, in bytes.
        asked: u32,
        /// What a slot holds, in bytes.
        max: u32,
    },
    /// A descriptor format that we do not have.
    #[error("descriptor formats {0:?} are not all supported")]
    Formats(BufferFormats),
    /// The access list does not have the initiator.
    #[error("initiator {0} is not in the access list")]
    NotAllowed(PortId),
    /// Several channels were asked for and are not offered.
    #[error("one channel a session is offered, and there is one")]
    NoMultiChannel,
    /// The nexus has as many channels as it may.
    #[error("the session has all of its {0} channels")]
    NexusChannels(u32),
    /// There is no room for another session.
    #[error("no room for another session")]
    Sessions,
    /// There is no room for another channel.
    #[error("no room for another channel")]
    Channels,
    /// Too few receive slots are left.
    #[error("{left} receive slots are left, a channel takes {needed} at least")]
    Slots {
        /// Slots that no channel has been promised.
        left: u32,
        /// What the smallest channel takes.
        needed: u32,
    },
    /// Something failed on our side.
    #[error("the channel could not be made")]
    Internal,
}

impl Refusal {
    /// The reason code for it.
    pub const fn reason(&self) -> RejReason {
        match self {
            Refusal::ReservedAction(_) | Refusal::Internal => RejReason::NO_REASON,
            Refusal::Disabled | Refusal::Channels | Refusal::Slots { .. } => RejReason::NO_RESOURCES,
            Refusal::IuLength { .. } => RejReason::IU_TOO_LARGE,
            Refusal::UnknownTarget(_) => RejReason::NO_NEXUS,
            Refusal::Formats(_) => RejReason::FORMAT,
            Refusal::NoMultiChannel => RejReason::NO_MULTI_CHANNEL,
            // LIO answers an initiator that its access list lacks with this code, too.
            Refusal::NotAllowed(_) | Refusal::NexusChannels(_) | Refusal::Sessions => {
                RejReason::CHANNEL_LIMIT
            }
        }
    }

    /// The IU for it, for a CM REJ with reason [`LoginRej::CM_REASON`].
    pub const fn rej(&self, request: &LoginReq) -> LoginRej {
        LoginRej { reason: self.reason(), tag: request.tag, formats: BufferFormats::BOTH }
    }
}

/// The request with its target filled in if it leaves that open, as our own initiator does that
/// is given an address only. Call it before anything is keyed by the request's port ids.
#[must_use]
pub fn resolved(request: &LoginReq, target: PortId) -> LoginReq {
    let open = request.target == PortId::UNSPECIFIED;
    LoginReq { target: if open { target } else { request.target }, ..*request }
}

/// Decides on a login.
pub fn decide(request: &LoginReq, limits: &LoginLimits, context: &LoginContext) -> Result<Accepted, Refusal> {
    let request = &resolved(request, context.target);
    check(request, limits, context)?;
    let credits = credits(limits, context)?;
    let single = request.multi_channel() == MultiChannel::Single;
    let others = context.nexus_channels > 0;
    let immediate_offset = immediate_offset(request, limits);

    let result = match (others, single) {
        (false, _) => 0,
        (true, true) => LoginRsp::TERMINATED,
        (true, false) => LoginRsp::MAINTAINED,
    };
    let immediate_flag = if immediate_offset.is_some() { LoginRsp::IMMEDIATE } else { 0 };
    let params = ChannelParams {
        credits,
        // Never less than was asked, or ib_srp warns and sends what it likes.
        max_it_iu_bytes: limits.max_it_iu_bytes,
        max_ti_iu_bytes: limits.max_ti_iu_bytes,
        immediate_offset,
        solicited_flags: request.flags
            & (LoginReq::LOGOUT_SOLICITED | LoginReq::CREDIT_SOLICITED | LoginReq::AER_SOLICITED),
    };
    let response = LoginRsp {
        request_limit_delta: credits as i32,
        tag: request.tag,
        max_it_iu_bytes: params.max_it_iu_bytes,
        max_ti_iu_bytes: params.max_ti_iu_bytes,
        formats: BufferFormats::BOTH,
        flags: result | immediate_flag,
    };
    Ok(Accepted {
        response,
        params,
        terminate_others: single && others,
        slots: credits + limits.control_slots,
    })
}

/// What is refused whatever is left. What the peer can mend comes before what it cannot.
fn check(request: &LoginReq, limits: &LoginLimits, context: &LoginContext) -> Result<(), Refusal> {
    if request.target != context.target {
        return Err(Refusal::UnknownTarget(request.target));
    }
    if !context.enabled {
        return Err(Refusal::Disabled);
    }
    let asked = request.max_it_iu_bytes;
    if !(MIN_IT_IU_BYTES..=limits.max_it_iu_bytes).contains(&asked) {
        return Err(Refusal::IuLength { asked, max: limits.max_it_iu_bytes });
    }
    if !request.formats.is_subset_of(BufferFormats::BOTH) {
        return Err(Refusal::Formats(request.formats));
    }
    if !context.allowed {
        return Err(Refusal::NotAllowed(request.initiator));
    }
    let others = context.nexus_channels;
    match request.multi_channel() {
        MultiChannel::Reserved => return Err(Refusal::ReservedAction(request.flags & 0x03)),
        MultiChannel::Multi if others > 0 && !limits.multi_channel => return Err(Refusal::NoMultiChannel),
        MultiChannel::Multi if others >= limits.max_channels_per_nexus => {
            return Err(Refusal::NexusChannels(others));
        }
        MultiChannel::Single | MultiChannel::Multi => {}
    }
    if others == 0 && context.sessions_left == 0 {
        return Err(Refusal::Sessions);
    }
    if context.channels_left == 0 {
        return Err(Refusal::Channels);
    }
    Ok(())
}

/// min(what a channel should get, what is left), never under the minimum.
fn credits(limits: &LoginLimits, context: &LoginContext) -> Result<u32, Refusal> {
    let min = limits.min_credits.max(2);
    let free = context.slots_left.saturating_sub(limits.control_slots);
    if free < min {
        return Err(Refusal::Slots { left: context.slots_left, needed: min + limits.control_slots });
    }
    Ok(limits.credits.max(min).min(free).min(i32::MAX as u32))
}

/// An offset inside of the fixed part is not granted (the login still succeeds, as with LIO);
/// neither is one that leaves no byte of an IU for data.
fn immediate_offset(request: &LoginReq, limits: &LoginLimits) -> Option<u16> {
    let offset = request.immediate_offset;
    let possible = usize::from(offset) >= Cmd::FIXED_BYTES && u32::from(offset) < limits.max_it_iu_bytes;
    (limits.immediate && request.flags & LoginReq::IMMEDIATE != 0 && possible).then_some(offset)
}
