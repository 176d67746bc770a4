//! How a target starts: a reactor for each shard, rings between them, a handle for the control
//! plane.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use reactors::arena::HugePages;
use reactors::reactor::{Idle, Reactor, ReactorConfig, SpawnError};
use reactors::ring::{Mailbox, Sender};
use reactors::wake::Waker;

use super::fabric::Fabric;
use super::handle::{CommandSink, Hugepages, Provider, StartConfig, TargetHandle};
use super::limits::{INBOX_DEPTH, SPARE_QUEUE_PAIRS};
use super::message::{Message, Peers};
use super::shard::{Shard, ShardSeed, StartError};
use crate::rdma::engine::Sizes;
#[cfg(feature = "ibv")]
use crate::rdma::ibv;
use crate::rdma::soft::Fault;
use crate::rdma::verbs::VerbsError;
use crate::rdma::{shard_bits, shm, soft};

/// Why a target did not start.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The operating system refused.
    #[error("cannot make the descriptors of the shards: {0}")]
    Wake(#[from] std::io::Error),
    /// A shard could not be built.
    #[error(transparent)]
    Shard(#[from] SpawnError<StartError>),
}

/// Makes the provider's context of one shard, on that shard's thread.
type FabricMaker<F> = Box<dyn FnOnce() -> Result<F, VerbsError> + Send>;

/// Starts a shard for each of `config.cores` on its provider. When this returns, all shards run and
/// own their memory; listeners come with the handle.
pub fn start(config: &StartConfig) -> Result<TargetHandle, TargetError> {
    let wakers = config.cores.iter().map(|_| Waker::new()).collect::<Result<Vec<_>, _>>()?;
    match &config.provider {
        Provider::Soft { fault } => start_on(config, &wakers, soft_shards(config, *fault)?),
        #[cfg(feature = "ibv")]
        Provider::Ibv(adapter) => start_on(config, &wakers, ibv_shards(config, adapter)?),
        Provider::Shm => start_on(config, &wakers, shm_shards(config)?),
    }
}

/// Room for twice the channels, since a dying one keeps its queue pair while its successor has another, and
/// for spares.
fn sizes(config: &StartConfig) -> Sizes {
    let max_qp = 2 * config.snapshot.limits.max_channels + SPARE_QUEUE_PAIRS as u32;
    Sizes { max_qp, ..Sizes::default() }
}

/// The shards of one device of shared memory.
fn shm_shards(config: &StartConfig) -> std::io::Result<Vec<FabricMaker<shm::Device>>> {
    let shards = config.cores.len();
    let shared = shm::DeviceConfig {
        sizes: sizes(config),
        shard_bits: shard_bits(shards),
        sleeps_after: match config.idle {
            Idle::Spin => None,
            Idle::Sleep { after } => Some(after),
        },
        ..shm::DeviceConfig::new(fastrand::u64(..))?
    };
    let makers = (0..shards).map(|shard| -> FabricMaker<_> {
        let guid = shared.guid.filter(|_| shard == 0);
        let own = shm::DeviceConfig { shard: shard as u32, guid, ..shared.clone() };
        Box::new(move || {
            shm::Device::new(own).map_err(|why| VerbsError::System {
                what: "descriptors for shared memory".to_owned(),
                why: why.to_string(),
            })
        })
    });
    Ok(makers.collect())
}

/// The shards of one device of the soft provider.
fn soft_shards(
    config: &StartConfig,
    fault: Option<Fault>,
) -> std::io::Result<Vec<FabricMaker<soft::Device>>> {
    let shards = config.cores.len();
    let guid = fastrand::u64(..);
    let sizes = sizes(config);
    let makers = soft::link_shards(shards)?.into_iter().enumerate().map(|(shard, links)| -> FabricMaker<_> {
        Box::new(move || {
            let mut device = soft::DeviceConfig::new(guid);
            device.engine.shard = shard as u32;
            device.engine.shard_bits = shard_bits(shards);
            device.engine.sizes = sizes;
            device.engine.write_only_segmentation = true;
            device.cm = device.cm.filter(|_| shard == 0);
            device.links = Some(links);
            // An initiator in this process would be none of ours.
            device.in_process = false;
            device.fault = fault;
            Ok(soft::Device::new(device))
        })
    });
    Ok(makers.collect())
}

/// The shards of an RDMA adapter.
#[cfg(feature = "ibv")]
fn ibv_shards(
    config: &StartConfig,
    adapter: &ibv::Adapter,
) -> std::io::Result<Vec<FabricMaker<ibv::Device>>> {
    let sleeps = matches!(config.idle, reactors::reactor::Idle::Sleep { .. });
    // As with soft: a dying channel keeps its queue pair while its successor has another.
    let max_qp = 2 * config.snapshot.limits.max_channels;
    let seats = ibv::link(adapter, config.cores.len(), max_qp, sleeps)?;
    Ok(seats.into_iter().map(|seat| -> FabricMaker<_> { Box::new(move || ibv::Device::new(seat)) }).collect())
}

/// Starts a shard for each of `config.cores`, each on the context that its maker makes.
fn start_on<F: Fabric + 'static>(
    config: &StartConfig,
    wakers: &[Waker],
    fabrics: Vec<FabricMaker<F>>,
) -> Result<TargetHandle, TargetError> {
    assert_eq!(config.cores.len(), fabrics.len(), "a provider context for each shard");
    let rings: Vec<(Sender<Message>, Mailbox<Message>)> =
        wakers.iter().map(|waker| Mailbox::new(INBOX_DEPTH, waker)).collect();
    let senders: Vec<Sender<Message>> = rings.iter().map(|(sender, _)| sender.clone()).collect();
    let limits = config.snapshot.limits;
    // What one shard can have to say to another at a time: about each task, and a few words about
    // each channel.
    let backlog = limits.tasks as usize + 4 * limits.max_channels as usize;
    let seatings = Arc::new(AtomicU64::new(0));
    let mut reactors = Vec::with_capacity(fabrics.len());
    let shards = config.cores.iter().zip(wakers).zip(rings).zip(fabrics).enumerate();
    for (index, (((core, waker), (_, inbox)), fabric)) in shards {
        let peers = Peers::new(senders.clone(), backlog);
        let snapshot = Arc::clone(&config.snapshot);
        let seatings = Arc::clone(&seatings);
        let hugepages = match config.hugepages {
            Hugepages::Auto => HugePages::Auto,
            Hugepages::Require => HugePages::Require,
            Hugepages::Off => HugePages::Off,
        };
        let reactor = ReactorConfig {
            name: format!("srpoll-{index}"),
            core: *core,
            idle: config.idle,
            waker: waker.clone(),
        };
        let build = move |seat: reactors::reactor::Seat| {
            let seed = ShardSeed {
                index,
                core: seat.core,
                snapshot,
                hugepages,
                inbox,
                peers,
                seatings,
                stats: Arc::clone(&seat.stats),
                clock: Some(seat.clock),
            };
            Shard::new(seed, fabric()?, fastrand::Rng::new())
        };
        reactors.push(Reactor::spawn(reactor, build)?);
    }
    let sinks = senders.into_iter().map(|sender| -> CommandSink {
        Box::new(move |command| {
            sender.send(Message::Control(command)).map_err(|back| match back {
                Message::Control(command) => command,
                _ => unreachable!("a ring gives back what did not fit"),
            })
        })
    });
    let join = move || {
        for reactor in reactors {
            if let Err(panicked) = reactor.join() {
                tracing::error!("{panicked}");
            }
        }
    };
    Ok(TargetHandle::new(sinks.collect(), Box::new(join)).with_seatings(seatings))
}
