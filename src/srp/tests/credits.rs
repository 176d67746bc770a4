//! Credits and tags under random histories.

use std::collections::HashMap;

use proptest::prelude::*;

use crate::srp::credit::{InitiatorCredit, Overrun, TargetCredit};
use crate::srp::tags::{TagError, TagTable};
use crate::wire::srp::Tag;

#[derive(Copy, Clone, Debug)]
enum Step {
    Request,
    Answer { withhold: bool },
    Silence,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Request),
        2 => any::<bool>().prop_map(|withhold| Step::Answer { withhold }),
        1 => Just(Step::Silence),
    ];
    prop::collection::vec(step, 0..400)
}

proptest! {
    /// Whatever happens, no credit is lost and none is made; both sides agree.
    #[test]
    fn credits_are_conserved(granted in 2_u32..70, steps in steps()) {
        let mut target = TargetCredit::new(granted);
        let mut initiator = InitiatorCredit::new(granted as i32);
        let mut outstanding = 0;
        for step in steps {
            match step {
                Step::Request => {
                    let sent = initiator.take_task_management();
                    prop_assert_eq!(target.take(), if sent { Ok(()) } else { Err(Overrun) });
                    outstanding += u32::from(sent);
                }
                Step::Answer { .. } | Step::Silence if outstanding == 0 => {}
                Step::Answer { withhold } => {
                    outstanding -= 1;
                    initiator.add(target.answer(withhold));
                }
                Step::Silence => {
                    outstanding -= 1;
                    target.end_silently();
                }
            }
            prop_assert_eq!(target.outstanding(), outstanding);
            prop_assert_eq!(target.left() + target.withheld() + outstanding, granted);
            prop_assert_eq!(initiator.limit(), i64::from(target.left()));
        }
    }

    /// The table of tags does what a map does.
    #[test]
    fn tags_are_a_map(
        capacity in 1_usize..40,
        steps in prop::collection::vec((any::<bool>(), 0_u8..60, any::<bool>()), 0..600),
    ) {
        let mut table = TagTable::new(capacity);
        let mut model = HashMap::new();
        for (task, (insert, number, high)) in (0_u32..).zip(steps) {
            // As ib_srp's: small numbers, hardware queues in bits 16 and up, task management in bit 31.
            let tag = Tag([number % 16, 0, number / 16, if high { 0x80 } else { 0 }, 0, 0, 0, 0]);
            let known = model.get(&tag).copied();
            prop_assert_eq!(table.get(tag), known);
            if insert {
                let expected = match known {
                    Some(task) => Err(TagError::InUse(task)),
                    None if model.len() == capacity => Err(TagError::Full),
                    None => Ok(()),
                };
                prop_assert_eq!(table.insert(tag, task), expected);
                if expected.is_ok() {
                    model.insert(tag, task);
                }
            } else {
                prop_assert_eq!(table.remove(tag), model.remove(&tag));
            }
            prop_assert_eq!(table.len(), model.len());
        }
        prop_assert_eq!(table.iter().collect::<HashMap<_, _>>(), model);
    }
}

#[test]
#[should_panic(expected = "a request ends that never came")]
fn an_answer_to_nothing_is_a_programmers_error() {
    TargetCredit::new(2).answer(false);
}
