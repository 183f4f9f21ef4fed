#!/bin/bash
# docs/add-a-task.md works as it stands: its blocks are put into a copy of the tree, where its
# commands test, configure and train the task.
page=docs/add-a-task.md
. tools/testing/follow_page.sh

identities() { # WHEN: those of the runs of defconfigs/smoke
	in_copy "make -s defconfig-smoke && make -s steps PLAN=build/$1 &&
		for program in build/$1/*/kablate; do \$program identity; done" >"$scratch/$1"
}
unchanged() { identities after && cmp "$scratch"/{before,after}; }
trained() {
	grep -Eq '"TASK":\s*"modsum"' "$tree"/runs/smoke/*/run.json &&
		grep -q '"name":"val/accuracy"' "$tree"/runs/smoke/*/journal.jsonl &&
		ls "$tree"/runs/smoke/*/done
}

echo 1..11
tap "the tree is copied" copy_tree
tap "runs have their identities" identities before
tap "the page names three new files and three lines, none in core/" read_page <<-END
	create data/tasks/modsum.c
	create data/tasks/modsum.kconfig
	insert data/Kconfig
	insert data/Makefile
	insert data/source_test.c
	create data/tasks/modsum_test.c
END
tap "they fit into the tree" follow_page
use_it
tap "the task was trained" trained
tap "and the runs of other tasks are the same as before" unchanged
