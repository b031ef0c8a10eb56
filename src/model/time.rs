//! Time as a value: it is read at the edge and passed in.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

/// Wall-clock time, nanoseconds since the Unix epoch. For people; never compared to decide an order of calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From nanoseconds since the Unix epoch.
    pub const fn from_unix_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn unix_nanos(self) -> i64 {
        self.0
    }
}

/// RFC 3339 in UTC with nanoseconds, as the reference writes `LastStateTransition`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(i128::from(self.0)) {
            Ok(time) => write!(f, "{time}"),
            Err(_) => write!(f, "{}ns", self.0),
        }
    }
}

/// `CLOCK_BOOTTIME`, nanoseconds since the machine booted: runs through suspend, never jumps, and means the same to every
/// process of one boot. Orders calls (design §4, tombstones) and times the cool-down of freed addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootTime(u64);

impl BootTime {
    /// From nanoseconds since boot.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since boot.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero when it lies in the future.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment plus `duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// This moment less `duration`, saturating.
    #[must_use]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Reads the clock.
    pub fn read() -> Self {
        // The clock exists on every kernel since 2.6.39; a failure would mean a broken libc, and zero only disables
        // what depends on order.
        nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map_or(Self(0), |time| {
            let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
            let nanos = u64::try_from(time.tv_nsec()).unwrap_or(0);
            Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
        })
    }
}

/// One reading of both clocks, handed to everything that is decided at that moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// For people.
    pub wall: Timestamp,
    /// For decisions.
    pub boot: BootTime,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Self {
        let wall = jiff::Timestamp::now().as_nanosecond();
        Self {
            wall: Timestamp::from_unix_nanos(i64::try_from(wall).unwrap_or(i64::MAX)),
            boot: BootTime::read(),
        }
    }
}
