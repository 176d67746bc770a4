//! What reactors stand on: rings, timers, the buddy allocator, the clock.

#![allow(missing_docs)]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use reactors::buddy::Buddy;
use reactors::clock::Clock;
use reactors::ring::{Mailbox, Outbox};
use reactors::time::Time;
use reactors::timer::TimerWheel;
use reactors::wake::Waker;

/// A message as shards exchange them: a handle and a few words.
type Message = [u64; 4];

fn rings(c: &mut Criterion) {
    let mut group = c.benchmark_group("ring");
    group.throughput(Throughput::Elements(1));
    let waker = Waker::new().unwrap();
    let (sender, mailbox) = Mailbox::<Message>::new(1024, &waker);
    group.bench_function("send and receive on one thread", |b| {
        b.iter(|| {
            sender.send(black_box([1; 4])).unwrap();
            mailbox.recv()
        });
    });
    let mut outbox = Outbox::new(sender.clone(), 16);
    group.bench_function("the same through an outbox", |b| {
        b.iter(|| {
            outbox.send(black_box([1; 4])).unwrap();
            mailbox.recv()
        });
    });
    group.bench_function("look into an empty one", |b| b.iter(|| mailbox.recv()));

    let (there, there_box) = Mailbox::<Message>::new(1024, &waker);
    let (back, back_box) = Mailbox::<Message>::new(1024, &waker);
    let echo = std::thread::spawn(move || {
        loop {
            match there_box.recv() {
                Some([0, ..]) => return,
                Some(message) => back.send(message).unwrap(),
                None => std::hint::spin_loop(),
            }
        }
    });
    group.bench_function("to another thread and back", |b| {
        b.iter(|| {
            there.send([1; 4]).unwrap();
            loop {
                if let Some(message) = back_box.recv() {
                    break message;
                }
                std::hint::spin_loop();
            }
        });
    });
    there.send([0; 4]).unwrap();
    echo.join().unwrap();
    group.finish();
}

fn timers(c: &mut Criterion) {
    let mut group = c.benchmark_group("timer");
    let mut wheel = TimerWheel::new(4096, Time::ZERO);
    // As a busy shard has them: a retry timer for each queue pair, a deadline for each task.
    let keys: Vec<_> = (0..4000u64)
        .map(|n| wheel.insert(Time::ZERO + Duration::from_millis(100 + n % 400), n).unwrap())
        .collect();
    let mut now = Time::ZERO;
    let mut n = 0;
    group.bench_function("re-arm one of 4000", |b| {
        b.iter(|| {
            now += Duration::from_nanos(100);
            n = (n + 1) % keys.len();
            wheel.rearm(keys[n], now + Duration::from_millis(500))
        });
    });
    group.bench_function("insert and cancel", |b| {
        b.iter(|| {
            let key = wheel.insert(now + Duration::from_millis(3), 0).unwrap();
            wheel.cancel(key)
        });
    });
    group.bench_function("next deadline", |b| b.iter(|| black_box(&wheel).next_deadline()));
    group.finish();
}

fn memory(c: &mut Criterion) {
    let mut group = c.benchmark_group("buddy");
    let mut buddy = Buddy::new(64 << 20);
    // Some are out, as they are while I/O is going on.
    let _held: Vec<_> = (0..33).map(|_| buddy.alloc(4096).unwrap()).collect();
    for len_bytes in [4 << 10, 64 << 10, 256 << 10] {
        group.bench_function(format!("{} KiB out and back", len_bytes >> 10), |b| {
            b.iter(|| {
                let piece = buddy.alloc(black_box(len_bytes)).unwrap();
                buddy.free(piece);
            });
        });
    }
    group.finish();
}

fn clock(c: &mut Criterion) {
    let clock = Clock::get();
    c.bench_function("clock", |b| b.iter(|| clock.now()));
}

criterion_group!(benches, rings, timers, memory, clock);
criterion_main!(benches);
