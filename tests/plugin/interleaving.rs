//! A runtime gives an ADD up and sends DEL while the ADD still runs (design §4): in every order, with the ADD held at every
//! step, nothing is left and nothing is given twice.

use crate::{
    gate::{Gate, Point},
    node::Node,
};

const DUAL: &str = "10.240.0.0/24,fd00:240::/120";

#[tokio::test]
async fn an_add_that_was_given_up_leaves_nothing_wherever_it_was_held() {
    let Some(mut node) = Node::new("an_add_that_was_given_up", DUAL).await else { return };
    let gate = Gate::open(&node).await;
    node.behind(gate.socket().to_owned());
    for point in Point::ALL {
        for namespace_is_known in [true, false] {
            let when = format!("DEL while ADD is held at {point:?}, namespace known: {namespace_is_known}");
            let pod = node.lab.pod("late");
            gate.close(point);
            let add = node.start_for("ADD", "late", Some(pod.path()), &node.netconf());
            gate.reached().await;
            node.del("late", namespace_is_known.then_some(&pod)).await.ok();
            gate.release();
            let added = Node::wait(add).await;
            if point == Point::AfterRecord {
                // Everything had been done, and DEL undone it; the answer comes too late for anybody to read it.
            } else {
                let (code, message) = added.error();
                assert!(message.contains("was deleted"), "{when}: {code} {message}");
            }
            assert_eq!(pod.link_names().await, ["lo"], "{when}");
            node.assert_clean(&when).await;
        }
    }
}

/// The runtime repeats the ADD under the same id after its DEL, while the first ADD is still held.
#[tokio::test]
async fn the_add_that_follows_the_del_wins_over_the_one_that_was_given_up() {
    let Some(mut node) = Node::new("the_add_that_follows", DUAL).await else { return };
    let gate = Gate::open(&node).await;
    node.behind(gate.socket().to_owned());
    for point in Point::ALL {
        let pod = node.lab.pod("again");
        gate.close(point);
        let first = node.start_for("ADD", "again", Some(pod.path()), &node.netconf());
        gate.reached().await;
        node.del("again", Some(&pod)).await.ok();
        let result = node.add("again", &pod).await.ok();
        gate.release();
        let first = Node::wait(first).await;
        assert!(!first.succeeded || point == Point::AfterRecord, "{point:?}: {first:#?}");
        node.check("again", &pod, &result).await.ok();
        node.cns.assert_sound().await;
        node.del("again", Some(&pod)).await.ok();
        node.assert_clean(&format!("{point:?}")).await;
    }
}

/// Two ADDs and two DELs of each of several containers at the same time, with nothing held: whatever order comes out, a last
/// DEL leaves nothing, and no address had two owners.
#[tokio::test]
async fn whatever_order_comes_out_a_last_del_leaves_nothing() {
    let Some(node) = Node::new("whatever_order_comes_out", DUAL).await else { return };
    for round in 0..5 {
        let pods: Vec<_> =
            (0..3).map(|i| (format!("c{i}"), node.lab.pod(&format!("r{round}-{i}")))).collect();
        let mut runs = Vec::new();
        for command in ["ADD", "DEL", "ADD", "DEL"] {
            for (container, pod) in &pods {
                runs.push(node.start_for(command, container, Some(pod.path()), &node.netconf()));
            }
        }
        for run in runs {
            Node::wait(run).await;
        }
        node.cns.assert_sound().await;
        for (container, pod) in &pods {
            node.del(container, Some(pod)).await.ok();
        }
        node.assert_clean(&format!("in round {round}")).await;
    }
}
