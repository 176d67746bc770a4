//! Adapters that misbehave: known failures of other targets, one test each. In all of them everything
//! ends recycled or destroyed, every slot, buffer and credit is back, and the neighbours on the same
//! shards are served all the while.

use std::net::SocketAddr;
use std::time::Duration;

use bdev::OpKind;
use reactors::slab::Key;
use reactors::time::Time;
use srpoll::rdma::sim::scripted::{
    Act, AdapterConfig, Connecting, Flush, LastWqe, Link, PostsInErr, Remains, Retiring, Script, Taken, ToErr,
};
use srpoll::rdma::verbs::{
    AsyncEvent, ConnEnd, ConnEvent, ConnId, ListenerId, QpId, QpState, Recycling, Retired, SrqId, Wc,
    WcOpcode, WcStatus,
};
use srpoll::target::handle::Request;
use srpoll::target::why::Why;
use srpoll::wire::num::Qpn;

use crate::rig::scripted::Hosts;
use crate::rig::{PORT, Rig, Setup, TARGET, disk, lun, ms, secs};

const KIB: usize = 1 << 10;

fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// A target of two shards with a well-behaved channel on each.
struct Scene {
    rig: Rig<Hosts>,
    neighbours: [usize; 2],
}

impl Scene {
    fn new() -> Scene {
        Scene::on(AdapterConfig::new(1, 2))
    }

    fn on(config: AdapterConfig) -> Scene {
        let mut rig = Rig::on_adapter(&Setup::new(vec![lun(0, disk::malloc(8))]), config);
        let neighbours = [rig.login_on(9, Script::soft()), rig.login_on(9, Script::soft())];
        Scene { rig, neighbours }
    }

    /// A channel whose queue pair behaves as `script` says, with work in every stage.
    fn victim(&mut self, script: Script) -> usize {
        let number = self.rig.channels.len() as u8;
        let channel = self.rig.login_on(number, script);
        self.work(channel);
        self.rig.run(us(30));
        channel
    }

    fn work(&mut self, channel: usize) {
        for n in 0..4 {
            self.rig.write(channel, 0, n * 1024, 0, 300 * KIB);
            self.rig.read(channel, 0, n * 1024, 0, 300 * KIB);
            self.rig.write(channel, 0, n * 1024, 0, 4 * KIB);
            self.rig.read(channel, 0, n * 1024, 0, 4 * KIB);
            self.rig.write_immediate(channel, 0, n * 1024, &[7; 4 * KIB]);
        }
    }

    fn serve_neighbours(&mut self) {
        for channel in self.neighbours {
            self.rig.serves(channel);
        }
    }

    /// Waits until only the neighbours have channels, which has to be within `time`.
    fn gone(&mut self, time: Duration) {
        self.rig.until_within("the others are gone", time, |rig| {
            (0..2).map(|shard| rig.channels_on(shard)).sum::<usize>() == 2
        });
        self.serve_neighbours();
    }

    /// The others are gone soon and without force, the neighbours are well, nothing is left.
    fn gentle(mut self) {
        self.gone(secs(2));
        assert_eq!(self.rig.count(|counts| counts.drains_overdue), 0);
        self.rig.settle();
    }
}

/// A completion that belongs to nobody, or to whom `wr_id` says.
fn stray(wr_id: u64, status: WcStatus) -> Act {
    let wc = Wc { wr_id, status, opcode: WcOpcode::Recv, len_bytes: 48, qpn: Qpn::new(0xdead) };
    Act::Stray { shard: 0, wc }
}

#[test]
fn completions_of_an_unknown_queue_pair_at_shut_down() {
    let mut scene = Scene::new();
    // Receives and sends of queue pairs that are destroyed come back flushed while the service ends.
    let late = Script {
        taken: Taken { count: 3, back: None },
        remains: Remains::Late(ms(30)),
        flush: Flush::Stuck { after: 2 },
        ..Script::rxe_6_1()
    };
    let victims = [scene.victim(late.clone()), scene.victim(late)];
    for shard in 0..2 {
        scene.rig.post_request(shard, Request::Drain(secs(8)));
    }
    let now = scene.rig.now;
    for (step, victim) in victims.into_iter().enumerate() {
        let far = scene.rig.far(victim);
        scene.rig.adapter.at(now + ms(1 + step as u64), Act::Break(far));
    }
    for step in 0..100 {
        let status = if step % 2 == 0 { WcStatus::WrFlush } else { WcStatus::Success };
        scene.rig.adapter.at(now + ms(100 * step), stray(step * 0x0123_4567_89ab_cdef, status));
    }
    scene.rig.run(secs(12));
    scene.rig.settled();
    assert!(scene.rig.count(|counts| counts.stale_completions) > 0);
}

#[test]
fn no_last_wqe_reached_on_old_rxe_and_on_iwarp() {
    for (script, promised) in [
        (Script::rxe_6_1(), true),
        (Script::rxe_6_1(), false),
        (Script::iwarp(), true),
        (Script::iwarp(), false),
    ] {
        let mut scene = Scene::on(AdapterConfig { last_wqe_event: promised, ..AdapterConfig::new(1, 2) });
        let victim = scene.victim(script);
        scene.rig.leave(victim);
        scene.gentle();
    }
}

#[test]
fn last_wqe_reached_before_after_and_several_times() {
    for after in [vec![us(0)], vec![us(100), us(1000), us(3000)], vec![ms(90)], vec![ms(400)], vec![us(1); 9]]
    {
        let mut scene = Scene::new();
        let last_wqe = LastWqe { after, on_posts: true };
        let victim = scene.victim(Script { last_wqe, ..Script::rxe_6_12() });
        scene.rig.leave(victim);
        scene.gentle();
    }
}

#[test]
fn drain_work_requests_that_never_complete() {
    let mut scene = Scene::new();
    let victim = scene.victim(Script { flush: Flush::Stuck { after: 0 }, ..Script::rxe_6_12() });
    scene.rig.leave(victim);
    scene.rig.run(secs(3));
    scene.serve_neighbours();
    scene.gone(secs(10));
    assert_eq!(scene.rig.count(|counts| counts.drains_overdue), 1);
    scene.rig.settle();
}

#[test]
fn flushes_late_and_in_any_order() {
    for flush in [
        Flush::InOrder { first: ms(700), every: ms(3) },
        Flush::AnyOrder { within: ms(300) },
        Flush::AnyOrder { within: us(5) },
    ] {
        let mut scene = Scene::new();
        let victim = scene.victim(Script { flush, ..Script::rxe_6_12() });
        scene.rig.leave(victim);
        scene.gentle();
    }
}

#[test]
fn an_adapter_that_never_leaves_rts() {
    for to_err in [ToErr::Ignored, ToErr::Refused] {
        // With a peer that goes on, and with one that is silent.
        for silent in [false, true] {
            let mut scene = Scene::new();
            let victim = scene.victim(Script { to_err, ..Script::rxe_6_1() });
            let far = scene.rig.far(victim);
            let now = scene.rig.now;
            if silent {
                scene.rig.adapter.act(now, Act::Silence(far));
            }
            let number = scene.rig.channels[victim].number;
            scene.rig.kick(number);
            scene.work(victim);
            scene.gone(secs(12));
            scene.rig.settle();
        }
    }
}

#[test]
fn a_queue_pair_that_three_racing_events_destroy_goes_once() {
    let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
    for order in orders {
        for apart in [us(0), us(1), us(40), ms(1), ms(120)] {
            for remains in [Remains::Queued, Remains::Late(us(50))] {
                let mut scene = Scene::new();
                let victim = scene.victim(Script { remains, ..Script::rxe_6_12() });
                let far = scene.rig.far(victim);
                let start = scene.rig.now + us(100);
                for (place, event) in order.into_iter().enumerate() {
                    let when = start + apart * place as u32;
                    // What the connection manager says is on its way for 20 us.
                    match event {
                        0 => {
                            scene
                                .rig
                                .adapter
                                .at(Time::from_nanos(when.as_nanos() - 20_000), Act::Disconnect(far));
                            scene.rig.channels[victim].left = true;
                        }
                        1 => scene.rig.adapter.at(when, Act::Break(far)),
                        _ => scene.rig.adapter.at(when, Act::Failure(far, WcStatus::RetryExceeded)),
                    }
                }
                scene.rig.run(apart * 2 + ms(1));
                scene.gentle();
            }
        }
    }
}

#[test]
fn a_request_whose_retries_are_over_is_used_no_more() {
    for number in 0..24 {
        let mut scene = Scene::new();
        let script = Script {
            // The login's own commands come first.
            fails: Some((4 + number, WcStatus::RetryExceeded)),
            flush: Flush::AnyOrder { within: ms(2) },
            remains: Remains::Late(ms(1)),
            ..Script::rxe_6_1()
        };
        let victim = scene.victim(script);
        scene.work(victim);
        scene.rig.run(ms(20));
        assert!(!scene.rig.is_live(victim), "request {number}");
        scene.gentle();
    }
}

#[test]
fn a_disconnect_during_accept() {
    for connecting in
        [Connecting::AtOnce, Connecting::After(us(42)), Connecting::Fails(us(30)), Connecting::Refused]
    {
        let mut scene = Scene::new();
        for micros in 0..120 {
            let script = Script { connecting, dreq_breaks: micros % 2 == 0, ..Script::rxe_6_1() };
            let login = scene.rig.ask_login(micros as u8 % 8, micros % 3 > 0, micros % 5 > 0, script);
            scene.rig.run(us(micros));
            scene.rig.leave(login);
            scene.rig.run(us(7 * (micros % 11)));
        }
        scene.gentle();
    }
}

#[test]
fn a_link_that_flaps_for_minutes_while_commands_wait_for_buffers() {
    // A disk that takes 20 ms, and buffers for two commands: 72 last much longer than the link does.
    let slow = disk::delayed(8, bdev::delay::Hold::After);
    OpKind::ALL.into_iter().for_each(|kind| slow.set_latency_us(kind, 20_000));
    let mut setup = Setup::new(vec![lun(0, slow)]);
    setup.limits.data_bytes = 2 * 256 * KIB;
    let mut rig = Rig::on_adapter(&setup, AdapterConfig::new(3, 2));
    rig.audits = false;
    let mut live: Vec<Option<usize>> = vec![None; 6];
    let script = Script { retries: Some(ms(60)), ..Script::rxe_6_12() };
    for flap in 0..900 {
        for (number, seat) in live.iter_mut().enumerate() {
            // Each host logs in again as soon as it knows that its session is over.
            if seat.is_none_or(|channel| {
                rig.channels[channel].left || matches!(rig.link(channel), Link::Ended(_))
            }) {
                *seat = Some(rig.ask_login(number as u8, false, true, script.clone()));
            }
            if let Some(channel) = seat.filter(|channel| rig.is_live(*channel)) {
                while rig.channels[channel].credits > 1 && rig.channels[channel].pending.len() < 12 {
                    rig.write(channel, 0, 0, 0, 256 * KIB);
                    rig.read(channel, 0, 0, 0, 256 * KIB);
                }
            }
        }
        let now = rig.now;
        rig.adapter.act(now, Act::Port { up: flap % 2 == 1 });
        rig.run(ms(200));
        rig.audit();
    }
    let counts: Vec<_> = rig.shards.iter().map(|shard| shard.counts()).collect();
    assert!(rig.count(|counts| counts.memory_waits) > 1000, "{counts:?}");
    assert!(rig.count(|counts| counts.channels_ended()) > 300, "{counts:?}");
    rig.settle();
    let channel = rig.login_on(0, Script::soft());
    rig.serves(channel);
    rig.settle();
}

#[test]
fn events_before_the_port_is_ready() {
    let mut rig =
        Rig::on_closed_adapter(&Setup::new(vec![lun(0, disk::malloc(8))]), AdapterConfig::new(1, 2));
    let nobody = Key { slot: 3, generation: 5 };
    let (qp, conn) = (QpId(nobody), ConnId(nobody));
    for shard in 0..2 {
        for event in [
            AsyncEvent::PortState { up: false },
            AsyncEvent::PortState { up: true },
            AsyncEvent::LastWqeReached(qp),
            AsyncEvent::QpFatal(qp),
            AsyncEvent::QpRequestError(qp),
            AsyncEvent::QpAccessError(qp),
            AsyncEvent::CommEstablished(qp),
            AsyncEvent::SqDrained(qp),
            AsyncEvent::QpRetired { qp, outcome: Retired::Destroyed },
            AsyncEvent::SrqLimit(SrqId(nobody)),
        ] {
            rig.adapter.act(rig.now, Act::Event { shard, event });
        }
    }
    for event in [
        ConnEvent::Established { conn },
        ConnEvent::Ended { conn, why: ConnEnd::PeerDisconnected },
        ConnEvent::Ended { conn, why: ConnEnd::Timeout },
    ] {
        rig.adapter.act(rig.now, Act::Connection(event));
    }
    rig.adapter.act(rig.now, stray(0, WcStatus::WrFlush));
    // A request that comes before anybody listens is refused by the connection manager; one that
    // comes all the same, of a connection that is gone, leads to nothing.
    let early = rig.ask_login(0, true, true, Script::soft());
    rig.run(ms(10));
    assert!(
        matches!(rig.link(early), Link::Ended(ConnEnd::Rejected { reason: 8, .. })),
        "{:?}",
        rig.link(early)
    );
    let (request, private_data) = rig.request(1);
    let event = ConnEvent::Request { conn, listener: ListenerId(nobody), request, private_data };
    rig.adapter.act(rig.now, Act::Connection(event));
    rig.run(secs(1));
    rig.settled();
    rig.listen();
    let channel = rig.login_on(2, Script::soft());
    rig.serves(channel);
    rig.settle();
}

#[test]
fn a_port_deleted_with_live_logins() {
    let address = SocketAddr::new(TARGET, PORT);
    for micros in (0..150).step_by(10) {
        let mut scene = Scene::new();
        let victim = scene.victim(Script::rxe_6_12());
        let login = scene.rig.ask_login(5, true, true, Script::rxe_6_1());
        scene.rig.run(us(micros));
        for shard in 0..2 {
            scene.rig.post_request(shard, Request::RemoveListener(address.into()));
        }
        scene.rig.run(ms(5));
        // Whoever is in stays in, and is served; who came too late hears so.
        let link = scene.rig.link(login);
        assert!(matches!(link, Link::Up(_) | Link::Ended(ConnEnd::Rejected { reason: 8, .. })), "{link:?}");
        scene.rig.serves(victim);
        scene.serve_neighbours();
        let late = scene.rig.ask_login(6, true, true, Script::soft());
        scene.rig.run(ms(5));
        assert!(matches!(scene.rig.link(late), Link::Ended(ConnEnd::Rejected { reason: 8, .. })));
        scene.rig.settle();
        // And the address can be served again.
        scene.rig.listen();
        let again = scene.rig.login_on(7, Script::soft());
        scene.rig.serves(again);
        scene.rig.settle();
    }
}

#[test]
fn a_receive_queue_that_runs_low_is_no_accident() {
    let mut scene = Scene::new();
    let victim = scene.victim(Script::soft());
    let now = scene.rig.now;
    for shard in 0..2 {
        let event = AsyncEvent::SrqLimit(SrqId(Key { slot: 0, generation: 0 }));
        scene.rig.adapter.act(now, Act::Event { shard, event });
    }
    scene.rig.run(ms(50));
    scene.rig.serves(victim);
    scene.rig.leave(victim);
    scene.gentle();
}

#[test]
fn a_port_that_is_down_for_a_while_loses_nobody() {
    let mut scene = Scene::new();
    let victim = scene.victim(Script::rxe_6_12());
    let now = scene.rig.now;
    scene.rig.adapter.act(now, Act::Port { up: false });
    scene.rig.run(secs(4));
    let now = scene.rig.now;
    scene.rig.adapter.act(now, Act::Port { up: true });
    scene.rig.run(ms(50));
    scene.rig.serves(victim);
    scene.serve_neighbours();
    assert_eq!(scene.rig.count(|counts| counts.channels_ended()), 0);
    // One that stays down is the death of all.
    let now = scene.rig.now;
    scene.rig.adapter.act(now, Act::Port { up: false });
    scene.rig.run(secs(30));
    assert_eq!(scene.rig.count(|counts| counts.exits.of(&Why::Silent(std::time::Duration::ZERO))), 3);
    scene.rig.settled();
}

#[test]
fn a_stock_of_queue_pairs_that_is_empty_refuses_a_login() {
    let mut scene = Scene::new();
    let now = scene.rig.now;
    scene.rig.adapter.act(now, Act::Stock { empty: true });
    let login = scene.rig.ask_login(0, true, true, Script::soft());
    scene.rig.run(ms(5));
    assert!(scene.rig.refusal(login).is_some(), "{:?}", scene.rig.link(login));
    let now = scene.rig.now;
    scene.rig.adapter.act(now, Act::Stock { empty: false });
    let channel = scene.rig.login_on(0, Script::soft());
    scene.rig.serves(channel);
    scene.rig.settle();
}

#[test]
fn an_error_raised_from_inside_its_own_completion() {
    for post in 0..40 {
        for posts_in_err in [PostsInErr::Refused, PostsInErr::Flushed] {
            let mut scene = Scene::new();
            let broken_at_post = Some(4 + post);
            let victim = scene.victim(Script { broken_at_post, posts_in_err, ..Script::rxe_6_1() });
            scene.rig.run(ms(20));
            assert!(!scene.rig.is_live(victim), "post {post}");
            scene.gentle();
        }
    }
}

#[test]
fn receives_that_a_dead_queue_pair_keeps() {
    for back in [Some(us(10)), Some(ms(90)), Some(ms(300)), None] {
        for remains in [Remains::Queued, Remains::Purged, Remains::Late(ms(5))] {
            let mut scene = Scene::new();
            let taken = Taken { count: 3, back };
            for _ in 0..3 {
                let victim = scene.victim(Script { taken, remains, ..Script::rxe_6_1() });
                scene.rig.leave(victim);
                scene.gone(secs(2));
            }
            scene.gentle();
        }
    }
}

/// libibverbs does not say how many receives are posted. After a queue pair that could not be drained
/// the worst is assumed; after all others nothing.
#[test]
fn receives_that_nobody_can_count() {
    for disorder in [false, true] {
        let config = AdapterConfig { counts_receives: false, ..AdapterConfig::new(1, 2) };
        let mut scene = Scene::on(config);
        let script = match disorder {
            true => Script {
                taken: Taken { count: 3, back: None },
                flush: Flush::Stuck { after: 0 },
                ..Script::rxe_6_12()
            },
            false => Script::rxe_6_12(),
        };
        let victim = scene.victim(script);
        scene.rig.leave(victim);
        scene.gone(secs(12));
        assert_eq!(scene.rig.count(|counts| counts.drains_overdue), u64::from(disorder));
        assert_eq!(scene.rig.counter("queues_renewed"), 0, "others use them");
        scene.rig.settle();
        assert_eq!(scene.rig.counter("queues_renewed"), u64::from(disorder));
        assert_eq!(scene.rig.counter("recv_lost"), 0, "nobody has counted");
        // Whoever logs in now finds as many as there were.
        let channel = scene.rig.login_on(20, Script::soft());
        scene.rig.serves(channel);
        scene.rig.settle();
    }
}

#[test]
fn a_late_flush_says_nothing_of_a_recycled_queue_pair() {
    for (recycling, rest) in [(Recycling::NewNumber, ms(0)), (Recycling::SameNumber, secs(2))] {
        // It comes while the queue pair is a spare, or serves its next channel.
        for late in [ms(1), ms(30)] {
            let mut scene = Scene::on(AdapterConfig { recycling, ..AdapterConfig::new(1, 2) });
            let victim = scene.victim(Script { remains: Remains::Late(late), ..Script::rxe_6_12() });
            scene.rig.leave(victim);
            scene.gone(secs(2));
            scene.rig.until("it is a spare", |rig| rig.count(|counts| counts.qps_recycled) == 1);
            scene.rig.run(rest);
            // Of the same host: others may not have it on every adapter.
            let next = scene.rig.login_on(2, Script::soft());
            scene.rig.run(ms(100));
            scene.rig.serves(next);
            scene.serve_neighbours();
            assert_eq!(scene.rig.count(|counts| counts.qps_reused), 1);
            assert_eq!(scene.rig.count(|counts| counts.channels_ended()), 1);
            scene.rig.settle();
        }
    }
}

/// Found in a guest: rxe had answered a host over IPv4, and sent what was for another over IPv6 to nowhere.
#[test]
fn a_recycled_queue_pair_that_still_goes_its_old_way() {
    let mut scene = Scene::new();
    let made = |scene: &Scene| {
        (scene.rig.count(|counts| counts.qps_made), scene.rig.count(|counts| counts.qps_reused))
    };
    let before = made(&scene).0;
    for (host, new, reused) in [(30, 1, 0), (31, 2, 0), (30, 2, 1), (31, 2, 2)] {
        let channel = scene.rig.login_on(host, Script::rxe_6_12());
        scene.rig.serves(channel);
        assert_eq!(made(&scene), (before + new, reused), "host {host}");
        scene.rig.leave(channel);
        scene.gone(secs(2));
        // The time wait of its number.
        scene.rig.run(secs(2));
    }
    scene.rig.settle();
}

#[test]
fn commands_that_complete_after_their_queue_pair_has_died() {
    for receive in [us(50), ms(2), ms(120)] {
        let mut scene = Scene::new();
        let victim = scene.rig.login_on(0, Script { receive, ..Script::rxe_6_12() });
        scene.work(victim);
        scene.rig.run(us(40));
        scene.rig.leave(victim);
        scene.gentle();
    }
}

#[test]
fn queue_pairs_that_go_slowly_or_refuse_to_go() {
    for recycling in [Recycling::Never, Recycling::SameNumber, Recycling::NewNumber] {
        for (after, failures, no_recycling) in
            [(ms(0), 0, false), (ms(700), 0, false), (ms(3), 2, false), (ms(1), 0, true), (ms(40), 3, true)]
        {
            let mut scene = Scene::on(AdapterConfig { recycling, ..AdapterConfig::new(1, 2) });
            let retiring = Retiring { after, failures, no_recycling };
            for _ in 0..4 {
                let victim = scene.victim(Script { retiring, ..Script::rxe_6_1() });
                scene.rig.leave(victim);
                scene.rig.run(ms(5));
                scene.serve_neighbours();
            }
            scene.rig.settle();
        }
    }
}

#[test]
fn a_completion_queue_that_runs_over_ends_its_shard_only() {
    let mut scene = Scene::new();
    for _ in 0..4 {
        scene.victim(Script::rxe_6_1());
    }
    let now = scene.rig.now;
    scene.rig.adapter.act(now, Act::Overrun { shard: 1 });
    scene.rig.run(secs(12));
    assert_eq!((scene.rig.channels_on(0), scene.rig.channels_on(1)), (3, 0));
    assert_eq!(scene.rig.counter("queues_renewed"), 1);
    // Whoever logs in now finds a shard that works.
    for number in 20..24 {
        let channel = scene.rig.login_on(number, Script::soft());
        scene.rig.serves(channel);
    }
    assert!(scene.rig.channels_on(1) > 0, "its queues are made anew");
    scene.rig.settle();
}

#[test]
fn a_device_that_dies_ends_everything() {
    let mut scene = Scene::new();
    for _ in 0..4 {
        scene.victim(Script::rxe_6_1());
    }
    let now = scene.rig.now;
    scene.rig.adapter.act(now, Act::Fatal);
    scene.rig.until_within("all channels are gone", secs(12), |rig| {
        (0..2).map(|shard| rig.channels_on(shard)).sum::<usize>() == 0
    });
    scene.rig.run(secs(5));
    for shard in &scene.rig.shards {
        // Receives cannot be posted any more; all else is back.
        let left: Vec<_> =
            shard.leftovers().into_iter().filter(|left| !left.contains("not posted")).collect();
        assert_eq!(left, Vec::<String>::new());
    }
    assert_eq!(scene.rig.adapter.states(0), Vec::<(QpState, usize)>::new());
    assert_eq!(scene.rig.adapter.misuse(), Vec::<String>::new());
}
