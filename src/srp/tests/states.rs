//! The state tables, printed whole.

use crate::srp::task::{TaskEvent, TaskState};

#[test]
fn the_table_of_task_states() {
    let mut table = String::new();
    for state in TaskState::ALL {
        table.push_str(&format!("{state} ({:?})\n", state.owner()));
        for event in TaskEvent::ALL {
            if let Ok(next) = state.after(event) {
                table.push_str(&format!("    {:16}{next}\n", format!("{event:?}")));
            }
        }
    }
    assert_eq!(table, TASK, "\n{table}");
}

const TASK: &str = "\
received (Shard)
    NeedMemory      wait_memory
    NeedWindow      wait_window
    PostTableRead   reading_table
    PostDataRead    reading_data
    SubmitBlock     in_block
    PostDataWrite   writing_data
    PostResponse    responding
    Abort           aborted
wait_memory (Shard)
    NeedWindow      wait_window
    PostTableRead   reading_table
    PostDataRead    reading_data
    SubmitBlock     in_block
    PostDataWrite   writing_data
    PostResponse    responding
    Abort           aborted
wait_window (Shard)
    NeedMemory      wait_memory
    PostTableRead   reading_table
    PostDataRead    reading_data
    SubmitBlock     in_block
    PostDataWrite   writing_data
    PostResponse    responding
    Abort           aborted
reading_table (Device)
    NeedMemory      wait_memory
    NeedWindow      wait_window
    PostDataRead    reading_data
    SubmitBlock     in_block
    PostDataWrite   writing_data
    PostResponse    responding
    Abort           aborted_in_device
reading_data (Device)
    NeedMemory      wait_memory
    NeedWindow      wait_window
    PostDataRead    reading_data
    SubmitBlock     in_block
    PostDataWrite   writing_data
    PostResponse    responding
    Abort           aborted_in_device
in_block (Block)
    Abort           aborted_in_block
    BlockReleased   received
writing_data (Device)
    NeedMemory      wait_memory
    NeedWindow      wait_window
    PostDataRead    reading_data
    SubmitBlock     in_block
    PostDataWrite   writing_data
    PostResponse    responding
    Abort           aborted_in_device
responding (Device)
    ResponseSent    done
    Abort           responding
aborted_in_device (Device)
    Abort           aborted_in_device
    DeviceReleased  aborted
aborted_in_block (Block)
    Abort           aborted_in_block
    BlockReleased   aborted
aborted (Shard)
    PostResponse    responding
    Abort           aborted
    EndSilently     done
done (Nobody)
";
