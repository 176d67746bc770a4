//! `bdev_*`: block devices, as SPDK's methods of the same names.

use std::path::PathBuf;
use std::sync::Arc;

use bdev::malloc::{MallocBdev, MallocOptions};
use bdev::null::{NullBdev, NullOptions};
use bdev::uring::{UringBdev, UringOptions};
use bdev::{Bdev, OpKind, OpenError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::wrappers;
use crate::control::jsonrpc::{Call, RpcError};
use crate::control::model::Model;

const MALLOC: &str = "Malloc disk";
const NULL: &str = "Null disk";
const URING: &str = "URING disk";

/// Nanoseconds: what all ticks here are.
pub(super) const TICK_RATE: u64 = 1_000_000_000;

/// Parameters of `bdev_malloc_create` and `bdev_null_create`.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryParams {
    name: Option<String>,
    num_blocks: u64,
    block_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    readonly: bool,
}

/// Parameters of `bdev_uring_create`.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UringParams {
    name: String,
    filename: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_size: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    readonly: bool,
}

/// Parameters of the methods that delete.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Name {
    pub(super) name: String,
}

/// Parameters of `bdev_get_bdevs`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetBdevs {
    name: Option<String>,
    /// SPDK's clients send how long to wait for the device, in ms. Ours are there or are not.
    #[serde(rename = "timeout")]
    _timeout: Option<u64>,
}

/// Parameters of `bdev_get_iostat`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GetIostat {
    name: Option<String>,
    names: Option<Vec<String>>,
}

pub(super) fn malloc_create(model: &mut Model, params: MemoryParams) -> Result<Value, RpcError> {
    create_in_memory(model, "Malloc", "bdev_malloc_create", params, |name, params, uuid| {
        let options = MallocOptions {
            len_bytes: len_bytes(&params)?,
            block_bytes: params.block_size,
            read_only: params.readonly,
            uuid: Some(uuid),
        };
        Ok(Arc::new(MallocBdev::create(name, &options).map_err(open_error)?))
    })
}

pub(super) fn null_create(model: &mut Model, params: MemoryParams) -> Result<Value, RpcError> {
    create_in_memory(model, "Null", "bdev_null_create", params, |name, params, uuid| {
        let options = NullOptions {
            len_bytes: len_bytes(&params)?,
            block_bytes: params.block_size,
            read_only: params.readonly,
            uuid: Some(uuid),
        };
        Ok(Arc::new(NullBdev::create(name, &options).map_err(open_error)?))
    })
}

pub(super) fn uring_create(model: &mut Model, params: UringParams) -> Result<Value, RpcError> {
    model.check_device_name(&params.name)?;
    let options = UringOptions {
        read_only: params.readonly,
        block_bytes: params.block_size,
        uuid: params.uuid,
        ..UringOptions::default()
    };
    let bdev = UringBdev::open(&params.name, &params.filename, &options).map_err(open_error)?;
    take_in(model, "bdev_uring_create", Arc::new(bdev), &params)
}

pub(super) fn malloc_delete(model: &mut Model, Name { name }: Name) -> Result<Value, RpcError> {
    model.remove_device(&name, MALLOC).map(|()| json!(true))
}

pub(super) fn null_delete(model: &mut Model, Name { name }: Name) -> Result<Value, RpcError> {
    model.remove_device(&name, NULL).map(|()| json!(true))
}

pub(super) fn uring_delete(model: &mut Model, Name { name }: Name) -> Result<Value, RpcError> {
    model.remove_device(&name, URING).map(|()| json!(true))
}

/// Parameters of `bdev_null_resize`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NullResize {
    name: String,
    /// In MiB.
    new_size: u64,
}

pub(super) fn null_resize(model: &mut Model, params: NullResize) -> Result<Value, RpcError> {
    let device = model.device_of(&params.name, NULL)?;
    let block_bytes = u64::from(device.geometry().block_bytes);
    let blocks = params.new_size.checked_mul(1 << 20).map(|bytes| bytes / block_bytes).ok_or_else(|| {
        RpcError::params(format!("new_size: {} MiB are more than 64 bits of bytes", params.new_size))
    })?;
    device.resize(blocks).map_err(open_error)?;
    model.remember(device.name(), "num_blocks", json!(blocks));
    model.refresh().map(|_| json!(true))
}

pub(super) fn uring_rescan(model: &mut Model, Name { name }: Name) -> Result<Value, RpcError> {
    model.device_of(&name, URING)?.rescan().map_err(open_error)?;
    model.refresh().map(|_| json!(true))
}

/// A device that lives in memory, with a name and a uuid if the caller gave none.
fn create_in_memory(
    model: &mut Model,
    kind: &str,
    method: &str,
    mut params: MemoryParams,
    make: impl FnOnce(&str, MemoryParams, Uuid) -> Result<Arc<dyn Bdev>, RpcError>,
) -> Result<Value, RpcError> {
    let name = params.name.take().unwrap_or_else(|| free_name(model, kind));
    model.check_device_name(&name)?;
    params.name = Some(name.clone());
    // The same after a restart, so that hosts find the disk under the names that they know.
    let derived = || Uuid::new_v5(&model.keeper().namespace(), format!("{method} {name}").as_bytes());
    let uuid = params.uuid.unwrap_or_else(derived);
    let bdev = make(&name, params.clone(), uuid)?;
    take_in(model, method, bdev, &params)
}

fn take_in(
    model: &mut Model,
    method: &str,
    bdev: Arc<dyn Bdev>,
    params: &impl Serialize,
) -> Result<Value, RpcError> {
    let params = serde_json::to_value(params).map_err(|error| RpcError::failed(error.to_string()))?;
    let name = bdev.name().to_owned();
    model.add_device(bdev, Call { method: method.to_owned(), params })?;
    Ok(json!(name))
}

/// `Malloc0`, `Malloc1`, ...: the first that is free, as SPDK names them.
fn free_name(model: &Model, kind: &str) -> String {
    (0..).map(|n| format!("{kind}{n}")).find(|name| !model.made().contains_key(name)).unwrap_or_default()
}

fn len_bytes(params: &MemoryParams) -> Result<u64, RpcError> {
    let MemoryParams { num_blocks, block_size, .. } = params;
    num_blocks.checked_mul(u64::from(*block_size)).ok_or_else(|| {
        RpcError::params(format!("num_blocks: {num_blocks} blocks are more than 64 bits of bytes"))
    })
}

fn open_error(error: OpenError) -> RpcError {
    RpcError::new(-i64::from(libc::EINVAL), error.to_string())
}

pub(super) fn get_bdevs(model: &mut Model, params: GetBdevs) -> Result<Value, RpcError> {
    let wanted = params.name.map(|name| model.device(&name)).transpose()?;
    let shown = model
        .devices()
        .iter()
        .filter(|there| wanted.as_ref().is_none_or(|wanted| wanted.name() == there.device.name()))
        .map(|there| describe(there.device.as_ref(), !there.users.is_empty()))
        .collect();
    Ok(shown)
}

/// One device as SPDK shows it.
fn describe(bdev: &dyn Bdev, claimed: bool) -> Value {
    let geometry = bdev.geometry();
    let kinds = [
        ("read", true),
        ("write", !geometry.read_only),
        ("unmap", geometry.unmap && !geometry.read_only),
        ("flush", true),
        ("reset", false),
        ("nvme_admin", false),
        ("nvme_io", false),
        ("nvme_io_md", false),
        ("write_zeroes", geometry.write_zeroes && !geometry.read_only),
        ("zcopy", false),
        ("get_zone_info", false),
        ("zone_management", false),
        ("zone_append", false),
        ("compare", false),
        ("compare_and_write", false),
        ("abort", true),
        ("seek_hole", false),
        ("seek_data", false),
        ("copy", false),
        ("nvme_iov_md", false),
    ];
    let supported: Map<String, Value> =
        kinds.into_iter().map(|(kind, can)| (kind.to_owned(), json!(can))).collect();
    json!({
        "name": bdev.name(),
        "aliases": [bdev.uuid().to_string()],
        "product_name": bdev.product(),
        "block_size": geometry.block_bytes,
        "num_blocks": geometry.blocks,
        "uuid": bdev.uuid().to_string(),
        "assigned_rate_limits": {
            "rw_ios_per_sec": 0,
            "rw_mbytes_per_sec": 0,
            "r_mbytes_per_sec": 0,
            "w_mbytes_per_sec": 0,
        },
        "claimed": claimed,
        "zoned": false,
        "supported_io_types": supported,
        "driver_specific": driver_specific(bdev),
    })
}

fn driver_specific(bdev: &dyn Bdev) -> Value {
    if let Some(wrapper) = wrappers::describe(bdev) {
        return wrapper;
    }
    let read_only = bdev.geometry().read_only;
    match bdev.backing() {
        Some(file) => json!({"uring": {"filename": file.to_string_lossy(), "readonly": read_only}}),
        None => json!({}),
    }
}

pub(super) fn get_iostat(model: &mut Model, params: GetIostat) -> Result<Value, RpcError> {
    let names = match (params.name, params.names) {
        (Some(_), Some(_)) => return Err(RpcError::params("name and names exclude each other")),
        (Some(name), None) => vec![name],
        (None, Some(names)) => names,
        (None, None) => model.made().keys().cloned().collect(),
    };
    let stats: Vec<Value> =
        names.iter().map(|name| Ok(iostat(model.device(name)?.as_ref()))).collect::<Result<_, RpcError>>()?;
    let ticks = reactors::clock::Clock::get().now().as_nanos();
    Ok(json!({"tick_rate": TICK_RATE, "ticks": ticks, "bdevs": stats}))
}

/// What one device has done, as SPDK shows it.
fn iostat(bdev: &dyn Bdev) -> Value {
    let stats = bdev.stats();
    let mut object = Map::new();
    object.insert("name".to_owned(), json!(bdev.name()));
    let kinds = [
        ("read", OpKind::Read, "bytes_read"),
        ("write", OpKind::Write, "bytes_written"),
        ("unmap", OpKind::Unmap, "bytes_unmapped"),
    ];
    for (word, kind, bytes) in kinds {
        let of = stats.of(kind);
        object.insert(bytes.to_owned(), json!(of.bytes));
        object.insert(format!("num_{word}_ops"), json!(of.ops));
        object.insert(format!("{word}_latency_ticks"), json!(of.latency_ns));
        object.insert(format!("max_{word}_latency_ticks"), json!(of.max_latency_ns));
        object.insert(format!("min_{word}_latency_ticks"), json!(of.min_latency_ns));
    }
    for zero in [
        "bytes_copied",
        "num_copy_ops",
        "copy_latency_ticks",
        "max_copy_latency_ticks",
        "min_copy_latency_ticks",
    ] {
        object.insert(zero.to_owned(), json!(0));
    }
    object.insert("num_flush_ops".to_owned(), json!(stats.of(OpKind::Flush).ops));
    object.insert("num_write_zeroes_ops".to_owned(), json!(stats.of(OpKind::WriteZeroes).ops));
    object.insert("num_errors".to_owned(), json!(stats.errors()));
    Value::Object(object)
}
