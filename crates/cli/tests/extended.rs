//! Extended attributes on the command line.

mod common;

use common::Ground;

/// Goal: getfattr shows what setfattr set, in the forms of the commands of those names, and both complain in our style.
#[test]
fn set_and_shown() {
    let ground = Ground::new("extended");
    ground.run(&["up", "--servers", "2"]);
    ground.run(&["mkdir", "/d"]);
    ground.run(&["ln", "-s", "d", "/link"]);
    ground.run(&["setfattr", "-n", "user.a", "-v", "a \"b\"", "/d", "/link"]);
    ground.run(&["setfattr", "--name", "user.b", "--value", "0x00ff", "/d"]);
    assert_eq!(ground.run(&["getfattr", "/d"]), "# file: /d\nuser.a\nuser.b\n\n");
    let dump = "# file: /link\nuser.a=\"a \\\"b\\\"\"\nuser.b=0sAP8=\n\n";
    assert_eq!(ground.run(&["getfattr", "-d", "/link"]), dump);
    assert_eq!(ground.run(&["getfattr", "-h", "-d", "/link"]), "");
    assert_eq!(ground.run(&["getfattr", "-d", "-m", "b$", "/d"]), "# file: /d\nuser.b=0sAP8=\n\n");
    let value: serde_json::Value = serde_json::from_str(&ground.run(&["getfattr", "-d", "--json", "/d"])).unwrap();
    assert_eq!(value[0]["attributes"][0]["text"], "a \"b\"");
    ground.run(&["setfattr", "-x", "user.a", "/d"]);
    assert_eq!(ground.run(&["getfattr", "-n", "user.b", "/d"]), "# file: /d\nuser.b=0sAP8=\n\n");
    assert!(ground.fail(1, &["getfattr", "-n", "user.a", "/d"]).contains("no such attribute"));
    assert!(ground.fail(1, &["setfattr", "-n", "other.a", "/d"]).contains("not supported"));
    assert!(ground.fail(2, &["setfattr", "/d"]).contains("--name"));
    assert!(ground.fail(2, &["setfattr", "-n", "user.a", "-v", "0xz", "/d"]).contains("hexadecimal"));
}
