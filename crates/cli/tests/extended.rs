//! Extended attributes and locks on the command line.

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

/// Goal: cp keeps extended attributes with -p, in, out and within the cluster, of files and directories, and else not.
#[test]
fn copied() {
    let ground = Ground::new("extended-copied");
    ground.run(&["up", "--servers", "2"]);
    std::fs::create_dir(ground.path.join("tree")).unwrap();
    std::fs::write(ground.path.join("tree/file"), b"x").unwrap();
    ground.run(&["cp", "-r", "tree", ":/tree"]);
    ground.run(&["setfattr", "-n", "user.file", "-v", "one", "/tree/file"]);
    ground.run(&["setfattr", "-n", "user.directory", "-v", "two", "/tree"]);
    ground.run(&["chmod", "500", "/tree"]);
    ground.run(&["cp", "-rp", ":/tree", ":/within"]);
    ground.run(&["cp", "-r", ":/tree", ":/without"]);
    ground.run(&["cp", "-rp", ":/tree", "out"]);
    ground.run(&["cp", "-r", "--preserve", "out", ":/again"]);
    for tree in ["within", "again"] {
        let shown = ground.run(&["getfattr", "-d", &format!("/{tree}"), &format!("/{tree}/file")]);
        let expected =
            format!("# file: /{tree}\nuser.directory=\"two\"\n\n# file: /{tree}/file\nuser.file=\"one\"\n\n");
        assert_eq!(shown, expected);
    }
    assert_eq!(ground.run(&["getfattr", "-d", "/without", "/without/file"]), "");
}

/// Goal: flock runs its command with the file locked: another one with -n is refused, one that waits gets its turn, and
/// the exit status is the command's.
#[test]
fn locked() {
    let ground = Ground::new("flock");
    ground.run(&["up", "--servers", "2"]);
    let inner = format!("{} flock -n /lock true; test $? = 1 && echo refused", common::TABANE);
    assert_eq!(ground.run(&["flock", "/lock", "sh", "-c", &inner]), "refused\n");
    let shared = format!("{} flock -n -s /lock echo beside", common::TABANE);
    assert_eq!(ground.run(&["flock", "-s", "/lock", "sh", "-c", &shared]), "beside\n");
    let mut both: Vec<_> =
        (0..2).map(|_| ground.start(&["flock", "/lock", "sh", "-c", "mkdir held && rmdir held"])).collect();
    assert!(both.iter_mut().all(|child| child.wait().unwrap().success()));
    ground.fail(7, &["flock", "/lock", "sh", "-c", "exit 7"]);
    assert!(ground.fail(127, &["flock", "/lock", "no-such-program"]).contains("no-such-program"));
}
