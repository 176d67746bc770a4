//! `bdev_delay_*` and `bdev_error_*`: devices over another device, as SPDK's methods of the same
//! names.

use std::any::Any;
use std::sync::Arc;

use bdev::delay::{DelayBdev, Hold};
use bdev::error::{ErrorBdev, Fault};
use bdev::{Bdev, IoError, OpKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use super::bdev::Name;
use crate::control::jsonrpc::{Call, RpcError};
use crate::control::model::Model;

const DELAY: &str = "delay";
const ERROR: &str = "Error disk";

/// Parameters of `bdev_delay_create`; latencies in microseconds.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DelayParams {
    base_bdev_name: String,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
    avg_read_latency: u64,
    p99_read_latency: u64,
    avg_write_latency: u64,
    p99_write_latency: u64,
}

pub(super) fn delay_create(model: &mut Model, params: DelayParams) -> Result<Value, RpcError> {
    let call = recorded("bdev_delay_create", &params)?;
    model.add_wrapper(&params.name, &params.base_bdev_name, call, |base| {
        // SPDK's way: an operation waits when it is done, so that nothing can cancel it.
        let device = DelayBdev::new(&params.name, base, Hold::After);
        let device = match params.uuid {
            Some(uuid) => device.with_uuid(uuid),
            None => device,
        };
        device.set_average_us(OpKind::Read, params.avg_read_latency);
        device.set_p99_us(OpKind::Read, params.p99_read_latency);
        device.set_average_us(OpKind::Write, params.avg_write_latency);
        device.set_p99_us(OpKind::Write, params.p99_write_latency);
        Arc::new(device)
    })?;
    Ok(json!(params.name))
}

pub(super) fn delay_delete(model: &mut Model, Name { name }: Name) -> Result<Value, RpcError> {
    model.remove_device(&name, DELAY).map(|()| json!(true))
}

/// Which latency `bdev_delay_update_latency` sets.
#[derive(Copy, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LatencyType {
    AvgRead,
    P99Read,
    AvgWrite,
    P99Write,
}

/// Parameters of `bdev_delay_update_latency`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateLatency {
    delay_bdev_name: String,
    latency_type: LatencyType,
    latency_us: u64,
}

pub(super) fn delay_update_latency(model: &mut Model, params: UpdateLatency) -> Result<Value, RpcError> {
    let device = model.device_of(&params.delay_bdev_name, DELAY)?;
    let delay = downcast::<DelayBdev>(device.as_ref(), DELAY)?;
    let micros = params.latency_us;
    let parameter = match params.latency_type {
        LatencyType::AvgRead => {
            delay.set_average_us(OpKind::Read, micros);
            "avg_read_latency"
        }
        LatencyType::P99Read => {
            delay.set_p99_us(OpKind::Read, micros);
            "p99_read_latency"
        }
        LatencyType::AvgWrite => {
            delay.set_average_us(OpKind::Write, micros);
            "avg_write_latency"
        }
        LatencyType::P99Write => {
            delay.set_p99_us(OpKind::Write, micros);
            "p99_write_latency"
        }
    };
    model.remember(device.name(), parameter, json!(micros));
    Ok(json!(true))
}

/// Parameters of `bdev_error_create`. The device's name is SPDK's: `EE_` and the base's.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ErrorParams {
    base_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<Uuid>,
}

pub(super) fn error_create(model: &mut Model, params: ErrorParams) -> Result<Value, RpcError> {
    let call = recorded("bdev_error_create", &params)?;
    // The base may be named by its uuid.
    let name = format!("EE_{}", model.device(&params.base_name)?.name());
    model.add_wrapper(&name, &params.base_name, call, |base| {
        let device = ErrorBdev::new(&name, base);
        match params.uuid {
            Some(uuid) => Arc::new(device.with_uuid(uuid)),
            None => Arc::new(device),
        }
    })?;
    Ok(json!(true))
}

pub(super) fn error_delete(model: &mut Model, Name { name }: Name) -> Result<Value, RpcError> {
    model.remove_device(&name, ERROR).map(|()| json!(true))
}

/// Which operations `bdev_error_inject_error` means.
#[derive(Copy, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum IoType {
    Read,
    Write,
    Flush,
    Unmap,
    WriteZeroes,
    All,
    /// No operation fails any more, and those that hang go on.
    Clear,
}

impl IoType {
    fn kinds(self) -> &'static [OpKind] {
        match self {
            IoType::Read => &[OpKind::Read],
            IoType::Write => &[OpKind::Write],
            IoType::Flush => &[OpKind::Flush],
            IoType::Unmap => &[OpKind::Unmap],
            IoType::WriteZeroes => &[OpKind::WriteZeroes],
            IoType::All | IoType::Clear => &OpKind::ALL,
        }
    }
}

/// What becomes of them.
#[derive(Copy, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ErrorType {
    Failure,
    Pending,
    CorruptData,
    Nomem,
}

/// Parameters of `bdev_error_inject_error`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InjectError {
    name: String,
    io_type: IoType,
    error_type: ErrorType,
    num: Option<u32>,
    /// SPDK: below so many operations in flight nothing fails. Its clients send 0.
    queue_depth: Option<u64>,
    corrupt_offset: Option<u32>,
    corrupt_value: Option<u8>,
}

pub(super) fn error_inject(model: &mut Model, params: InjectError) -> Result<Value, RpcError> {
    let device = model.device_of(&params.name, ERROR)?;
    let error = downcast::<ErrorBdev>(device.as_ref(), ERROR)?;
    if params.queue_depth.is_some_and(|depth| depth > 0) {
        return Err(RpcError::params("queue_depth: only 0 is possible"));
    }
    let fault = match params.error_type {
        ErrorType::Failure => Fault::Fail(IoError::Medium(libc::EIO)),
        ErrorType::Pending => Fault::Pending { stubborn: false },
        ErrorType::Nomem => Fault::NoMemory,
        // SPDK takes no value of 0, which most often would change nothing.
        ErrorType::CorruptData => match (params.corrupt_offset, params.corrupt_value) {
            (offset, Some(value)) if value > 0 => Fault::Corrupt { offset: offset.unwrap_or(0), value },
            _ => return Err(RpcError::params("corrupt_value: 1 to 255 is needed for corrupt_data")),
        },
    };
    for &kind in params.io_type.kinds() {
        match params.io_type {
            IoType::Clear => error.clear(kind),
            _ => error.inject(kind, fault, u64::from(params.num.unwrap_or(1))),
        }
    }
    Ok(json!(true))
}

/// What `bdev_get_bdevs` says of a device that lies over another one.
pub(super) fn describe(bdev: &dyn Bdev) -> Option<Value> {
    let base = bdev.base()?.name();
    let any: &dyn Any = bdev;
    if let Some(delay) = any.downcast_ref::<DelayBdev>() {
        return Some(json!({"delay": {
            "name": delay.name(),
            "base_bdev_name": base,
            "avg_read_latency": delay.average_us(OpKind::Read),
            "p99_read_latency": delay.p99_us(OpKind::Read),
            "avg_write_latency": delay.average_us(OpKind::Write),
            "p99_write_latency": delay.p99_us(OpKind::Write),
        }}));
    }
    let error = any.downcast_ref::<ErrorBdev>()?;
    Some(json!({"error": {"name": error.name(), "base_bdev": base}}))
}

fn downcast<'a, T: Bdev>(device: &'a dyn Bdev, kind: &str) -> Result<&'a T, RpcError> {
    let any: &dyn Any = device;
    any.downcast_ref().ok_or_else(|| RpcError::missing(format!("bdev {} is not a {kind}", device.name())))
}

fn recorded(method: &str, params: &impl Serialize) -> Result<Call, RpcError> {
    let params = serde_json::to_value(params).map_err(|error| RpcError::failed(error.to_string()))?;
    Ok(Call { method: method.to_owned(), params })
}
