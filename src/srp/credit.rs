//! The request limit: how many requests an initiator may have sent and not seen answered.
//!
//! It starts with SRP_LOGIN_RSP; each SRP_CMD and SRP_TSK_MGMT takes one; each SRP_RSP, CRED_REQ
//! and AER_REQ adds its signed delta (SRP r16a, 5.4).

/// The target's count of one channel. At all times
/// `left + outstanding + withheld == granted`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TargetCredit {
    granted: u32,
    /// What the initiator may still send.
    left: u32,
    /// Ended without an answer, or answered without giving the credit back.
    withheld: u32,
}

/// A request came although the limit was used up.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Overrun;

impl TargetCredit {
    /// A channel that was granted `granted` credits at login.
    pub fn new(granted: u32) -> Self {
        TargetCredit { granted, left: granted, withheld: 0 }
    }

    /// What the login granted.
    pub fn granted(&self) -> u32 {
        self.granted
    }

    /// What the initiator may still send.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// What will go back with a later answer.
    pub fn withheld(&self) -> u32 {
        self.withheld
    }

    /// Requests that came and have not ended.
    pub fn outstanding(&self) -> u32 {
        self.granted - self.left - self.withheld
    }

    /// A request came.
    pub fn take(&mut self) -> Result<(), Overrun> {
        self.left = self.left.checked_sub(1).ok_or(Overrun)?;
        Ok(())
    }

    /// A request ends without an answer: its credit goes back with the next answer.
    ///
    /// # Panics
    /// If no request is outstanding.
    pub fn end_silently(&mut self) {
        assert!(self.outstanding() > 0, "a request ends that never came");
        self.withheld += 1;
    }

    /// A request ends with an answer. Gives the delta for that answer: its own credit and all
    /// withheld ones, or, with `withhold`, none now.
    ///
    /// # Panics
    /// If no request is outstanding.
    pub fn answer(&mut self, withhold: bool) -> i32 {
        self.end_silently();
        if withhold {
            return 0;
        }
        let delta = std::mem::take(&mut self.withheld);
        self.left += delta;
        delta as i32
    }
}

impl TargetCredit {
    /// All withheld credits go back by a CRED_REQ. Gives its delta.
    pub fn give(&mut self) -> i32 {
        let delta = std::mem::take(&mut self.withheld);
        self.left += delta;
        delta as i32
    }
}

/// The initiator's count of one channel: `req_lim` of ib_srp.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct InitiatorCredit {
    limit: i64,
}

impl InitiatorCredit {
    /// Credits that commands leave for task management.
    pub const RESERVE: i64 = 1;

    /// A channel with the delta of its login response.
    pub fn new(delta: i32) -> Self {
        InitiatorCredit { limit: i64::from(delta) }
    }

    /// How many requests may be sent; negative while the target takes credits back.
    pub fn limit(&self) -> i64 {
        self.limit
    }

    /// How many commands may be sent now.
    pub fn commands(&self) -> u32 {
        (self.limit - Self::RESERVE).clamp(0, i64::from(u32::MAX)) as u32
    }

    /// Takes a credit for a command; false if none is left.
    #[must_use]
    pub fn take_command(&mut self) -> bool {
        let free = self.limit > Self::RESERVE;
        self.limit -= i64::from(free);
        free
    }

    /// Takes a credit for a task management request; false if none is left.
    #[must_use]
    pub fn take_task_management(&mut self) -> bool {
        let free = self.limit > 0;
        self.limit -= i64::from(free);
        free
    }

    /// An IU brought `delta`.
    pub fn add(&mut self, delta: i32) {
        self.limit = self.limit.saturating_add(i64::from(delta));
    }
}
