//! Storms and noise: whatever comes, the state stays bounded and nothing panics.

use proptest::prelude::*;

use super::*;
use crate::wire::cm::{CommId, Req, reason};
use crate::wire::mad::MAD_LEN;

/// A REQ of a queue pair of A.
fn req_from(pair: &mut Pair, qpn: u32) -> CmMad {
    pair.a.connect(pair.now, &connect_attr(PORT, qpn)).unwrap();
    pair.sent_by_a().pop().unwrap()
}

#[test]
fn of_too_many_half_open_the_oldest_goes() {
    let mut pair = Pair::with(CmConfig { max_half_open: 2, ..CmConfig::new(B.1) });
    let (_, first) = pair.asked(PORT, 0x100);
    let (_, second) = pair.asked(PORT, 0x101);
    pair.b.accept(pair.now, second, &reply(0x200), b"").unwrap();
    pair.settle();
    let req = req_from(&mut pair, 0x102);
    pair.give_b(&req);
    // It was not answered yet, so it will ask again and is not told.
    assert_eq!(pair.ended_b(), (first, ConnEnd::Timeout));
    requested(&mut pair.b);
    assert!(pair.sent_by_b().is_empty());
    let req = req_from(&mut pair, 0x103);
    pair.give_b(&req);
    assert_eq!(pair.ended_b(), (second, ConnEnd::Timeout));
    assert_eq!(reason_of(&pair.one_from_b()), reason::TIMEOUT, "it had our REP");
    requested(&mut pair.b);
    assert_eq!((pair.b.half_open(), pair.b.stats().evicted), (2, 2));
}

#[test]
fn an_established_connection_is_never_evicted() {
    let mut pair = Pair::with(CmConfig { max_half_open: 1, ..CmConfig::new(B.1) });
    let (_, b) = pair.established(0x100);
    for qpn in 0x101..0x110 {
        let req = req_from(&mut pair, qpn);
        pair.give_b(&req);
    }
    let ended = std::iter::from_fn(|| pair.b.poll_event())
        .any(|event| matches!(event, ConnEvent::Ended { conn, .. } if conn == b));
    assert!(!ended);
    pair.b.disconnect(pair.now, b).unwrap();
}

#[test]
fn a_full_table_ends_time_waits_early_and_then_says_so() {
    let mut pair = Pair::with(CmConfig { max_connections: 3, ..CmConfig::new(B.1) });
    let (a, _) = pair.established(0x100);
    pair.established(0x101);
    pair.a.disconnect(pair.now, a).unwrap();
    pair.settle();
    pair.ended_a();
    pair.ended_b();
    pair.established(0x102);
    assert_eq!(pair.b.len(), 3);
    pair.established(0x103);
    assert_eq!(pair.b.len(), 3, "the one in time wait made room");
    let req = req_from(&mut pair, 0x104);
    pair.give_b(&req);
    assert_eq!(reason_of(&pair.one_from_b()), reason::NO_RESOURCES);
    pair.pass(Duration::from_secs(2));
    assert_eq!(pair.b.len(), 3);
}

#[test]
fn a_consumer_that_sleeps_is_not_buried() {
    let config = CmConfig { max_connections: 8, max_half_open: 4, ..CmConfig::new(B.1) };
    let mut pair = Pair::with(config);
    let mut req = req_from(&mut pair, 0x100);
    for id in 0..10_000 {
        if let Message::Req(body) = &mut req.message {
            body.local_id = CommId(id);
        }
        pair.give_b(&req);
    }
    let events = std::iter::from_fn(|| pair.b.poll_event()).count();
    assert!(events <= 4 * 8, "{events} events");
    assert!(pair.b.stats().overrun > 9_000);
    assert!(pair.b.len() <= 8);
}

#[test]
fn a_provider_that_sleeps_is_not_buried() {
    let mut pair = Pair::new();
    let req = spoilt(&mut pair);
    for _ in 0..5_000 {
        pair.give_b(&req);
    }
    assert_eq!(pair.sent_by_b().len(), 1_024);
    assert_eq!(pair.b.stats().transmit_overrun, 5_000 - 1_024);
}

fn spoilt(pair: &mut Pair) -> CmMad {
    let mut req = req_from(pair, 0x100);
    if let Message::Req(body) = &mut req.message {
        body.path_mtu = 0;
    }
    req
}

#[test]
fn ids_are_random() {
    let mut pair = Pair::new();
    let ids: std::collections::BTreeSet<u32> = (0x100..0x140)
        .map(|qpn| match req_from(&mut pair, qpn).message {
            Message::Req(req) => req.local_id.0,
            _ => panic!("no REQ"),
        })
        .collect();
    assert_eq!(ids.len(), 64);
    let spread = ids.last().unwrap() - ids.first().unwrap();
    assert!(spread > u32::MAX / 2, "{spread}");
}

/// What one step of the noise does.
#[derive(Debug, Clone)]
enum Step {
    /// Any bytes.
    Bytes(Vec<u8>),
    /// A REQ that passes all checks, of one of few queue pairs.
    Req { qpn: u8, id: u8, psn: u8 },
    /// A message that was overheard, its kind changed, perhaps from a wrong address.
    Overheard { which: usize, attribute: u8, wrong_peer: bool },
    /// The consumer answers the latest request.
    Consumer(u8),
    /// Time passes.
    Pass(u32),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..300).prop_map(Step::Bytes),
        3 => (0u8..6, 0u8..3, 0u8..3).prop_map(|(qpn, id, psn)| Step::Req { qpn, id, psn }),
        3 => (any::<usize>(), 0x10u8..0x1b, prop::bool::weighted(0.1))
            .prop_map(|(which, attribute, wrong_peer)| Step::Overheard { which, attribute, wrong_peer }),
        3 => any::<u8>().prop_map(Step::Consumer),
        1 => (0u32..30_000).prop_map(Step::Pass),
    ]
}

proptest! {
    /// Random and overheard messages in any order: bounded state, each connection ends at most
    /// once, and when it is quiet for long enough nothing is left but what the consumer holds.
    #[test]
    fn noise_leaves_nothing_behind(noise in prop::collection::vec(steps(), 1..120)) {
        let config = CmConfig { max_connections: 8, max_half_open: 4, ..CmConfig::new(B.1) };
        let mut pair = Pair::with(config);
        let mut template = Req::default();
        if let Message::Req(req) = req_from(&mut pair, 0x100).message {
            template = req;
        }
        let mut heard: Vec<[u8; MAD_LEN]> = Vec::new();
        let mut conns = Vec::new();
        let mut over = std::collections::BTreeSet::new();
        for step in noise {
            match step {
                Step::Bytes(mut bytes) => {
                    if bytes.len() > 20 {
                        bytes.resize(MAD_LEN, 0);
                        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
                        (bytes[16], bytes[17]) = (0, 0x10 + bytes[17] % 11);
                    }
                    pair.b.handle_mad(pair.now, b_path(), &bytes);
                }
                Step::Req { qpn, id, psn } => {
                    template.local_qpn = Qpn::new(0x100 + u32::from(qpn));
                    template.local_id = CommId(1 + u32::from(id));
                    template.starting_psn = Psn::new(u32::from(psn));
                    let mad = CmMad::new(1, template).emit();
                    heard.push(mad);
                    pair.b.handle_mad(pair.now, b_path(), &mad);
                }
                Step::Overheard { which, attribute, wrong_peer } => {
                    let Some(mad) = heard.get(which.checked_rem(heard.len()).unwrap_or(0)) else { continue };
                    let mut mad = *mad;
                    mad[17] = attribute;
                    // What B says to A, with the two ids the other way round, is what A might say.
                    let (ours, theirs) = (mad[24..28].to_vec(), mad[28..32].to_vec());
                    mad[24..28].copy_from_slice(&theirs);
                    mad[28..32].copy_from_slice(&ours);
                    let from = if wrong_peer {
                        Path { remote: IpAddr::from([10, 99, 0, 66]), ..b_path() }
                    } else {
                        b_path()
                    };
                    pair.b.handle_mad(pair.now, from, &mad);
                }
                Step::Consumer(choice) => {
                    let Some(conn) = conns.get(usize::from(choice >> 3).checked_rem(conns.len()).unwrap_or(0)) else {
                        continue;
                    };
                    let _ = match choice & 7 {
                        0..4 => pair.b.accept(pair.now, *conn, &reply(0x200), b"yes"),
                        4 => pair.b.reject(pair.now, *conn, 28, b"no"),
                        5 => pair.b.established(pair.now, *conn),
                        _ => pair.b.disconnect(pair.now, *conn),
                    };
                }
                Step::Pass(millis) => pair.pass(Duration::from_millis(u64::from(millis))),
            }
            while let Some((_, mad)) = pair.b.poll_transmit() {
                heard.push(mad);
            }
            while let Some(event) = pair.b.poll_event() {
                match event {
                    ConnEvent::Request { conn, .. } => conns.push(conn),
                    ConnEvent::Ended { conn, .. } => {
                        let key = (conn.0.slot, conn.0.generation);
                        prop_assert!(over.insert(key), "{:?} ended twice", conn);
                    }
                    ConnEvent::Established { conn } => {
                        prop_assert!(!over.contains(&(conn.0.slot, conn.0.generation)));
                    }
                    ConnEvent::Reply { .. } => prop_assert!(false, "nobody asked"),
                }
            }
            prop_assert!(pair.b.len() <= 8);
            prop_assert!(pair.b.half_open() <= 4);
        }
        for conn in conns {
            let _ = pair.b.reject(pair.now, conn, 28, b"");
            let _ = pair.b.disconnect(pair.now, conn);
        }
        pair.pass(Duration::from_secs(600));
        prop_assert!(pair.b.is_empty(), "{} connections are left", pair.b.len());
        prop_assert_eq!(pair.b.deadline(), Time::NEVER);
    }

    /// The asking side alike: answers of every kind to its own ids, in any order. A connection is
    /// replied to once, ends once, and not the other way round.
    #[test]
    fn noise_does_not_confuse_who_asks(
        noise in prop::collection::vec((0u8..8, 0usize..4, 0u32..3, 0x11u8..0x1b, 0u8..4), 1..120),
    ) {
        let mut pair = Pair::new();
        let mut asked = Vec::new();
        for qpn in 0x100..0x104 {
            let conn = pair.a.connect(pair.now, &connect_attr(PORT, qpn)).unwrap();
            let Message::Req(req) = pair.one_from_a().message else { panic!("no REQ") };
            asked.push((conn, req.local_id, 0, 0));
        }
        for (what, which, theirs, attribute, about) in noise {
            let (conn, ours, ..) = asked[which];
            match what {
                0 => pair.pass(Duration::from_millis(700)),
                1 => drop(pair.a.established(pair.now, conn)),
                2 if theirs == 0 => drop(pair.a.disconnect(pair.now, conn)),
                _ => {
                    let mut mad = [0; MAD_LEN];
                    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
                    mad[17] = attribute;
                    mad[24..28].copy_from_slice(&(0x500 + theirs).to_be_bytes());
                    mad[28..32].copy_from_slice(&ours.0.to_be_bytes());
                    mad[32] = about << 6;
                    mad[36..39].copy_from_slice(&[0, 2, theirs as u8]);
                    pair.a.handle_mad(pair.now, a_path(), &mad);
                }
            }
            pair.sent_by_a();
            while let Some(event) = pair.a.poll_event() {
                match event {
                    ConnEvent::Reply { conn, .. } => {
                        let seen = asked.iter_mut().find(|seen| seen.0 == conn).unwrap();
                        seen.2 += 1;
                        prop_assert_eq!((seen.2, seen.3), (1, 0));
                    }
                    ConnEvent::Ended { conn, .. } => {
                        let seen = asked.iter_mut().find(|seen| seen.0 == conn).unwrap();
                        seen.3 += 1;
                        prop_assert_eq!(seen.3, 1);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        for (conn, ..) in asked {
            let _ = pair.a.disconnect(pair.now, conn);
        }
        pair.pass(Duration::from_secs(600));
        prop_assert!(pair.a.is_empty());
        prop_assert_eq!(pair.a.deadline(), Time::NEVER);
    }
}
