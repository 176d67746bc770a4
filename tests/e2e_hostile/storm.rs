//! Hundreds of logins that nobody goes through with.

use std::time::{Duration, Instant};

use srpoll::wire::cm::{CmMad, CommId};
use srpoll::wire::num::Qpn;

use super::Bout;
use super::instance::{Perf, address};
use super::raw::{Peer, Wire, login, req};

/// Half-open logins that the target holds at most (`target/limits.rs`).
const MOST_HALF_OPEN: u64 = 128;

#[test]
fn a_login_storm() {
    let mut bout = Bout::begin(152);
    let wires: Vec<Wire> = (0..25).map(|_| bout.wire()).collect();
    let since = bout.target.stats();
    let send = |wire: &Wire, number: u32| {
        let mut request = req(wire, number, &login(number.into()));
        request.local_id = CommId(number + 1);
        request.local_qpn = Qpn::new(number + 2);
        wire.send_mad(&CmMad::new(number.into(), request));
    };

    // 400 from one address, 600 from twenty-five, all of different initiators.
    for number in 0..400 {
        send(&wires[0], number);
        if number % 50 == 0 {
            assert!(bout.target.stats().get("half_open") <= MOST_HALF_OPEN);
        }
    }
    for number in 400..1000 {
        send(&wires[number as usize % wires.len()], number);
        if number % 50 == 0 {
            assert!(bout.target.stats().get("half_open") <= MOST_HALF_OPEN);
        }
    }
    bout.counted(&since, &["logins_accepted", "logins_refused", "logins_abandoned"], 1000);
    assert!(bout.target.stats().get("half_open") <= MOST_HALF_OPEN);

    // An honest login gets in right behind it, at the latest when the target has given the others up.
    let honest = Instant::now();
    let answer = loop {
        let local = address(250);
        match Peer::connect(Wire::new(local, bout.at), 5000, &login(5000)) {
            Ok(peer) => break peer,
            Err(rej) => {
                assert!(honest.elapsed() < Duration::from_secs(10), "still refused: {}", rej.reason);
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    };
    answer.log_out();
    let perf = Perf::start(bout.at, address(251), &["--rw", "read", "--qd", "4", "--ios", "500"]);
    let ended = perf.end(Duration::from_secs(30));
    assert_eq!(ended.status, Some(0), "{ended:?}");
    drop(wires);
    bout.end();
}
