#!/bin/bash
# docs/ask-a-question.md works as it stands: its commands run in a copy of the tree.  `make` is a script
# that calls make and makes whatever was set small, so they run as written, only shorter.
page=docs/ask-a-question.md
section="The commands"
. tools/testing/follow_page.sh

small="CONFIG_MODEL_LAYERS=1 CONFIG_MODEL_EMBD=16 CONFIG_GPT2_MAX_ITERS=4 CONFIG_WARMUP_ITERS=1
	CONFIG_TRAIN_BATCH=2 CONFIG_EVAL_SAMPLE=0"

make_it_short() {
	mkdir "$scratch/bin" && cat >"$scratch/bin/make" <<-END && chmod +x "$scratch/bin/make"
		#!/bin/sh
		$(command -v make) "\$@" || exit
		[ "\$1" != set ] || exec $(command -v make) -s set $(echo $small)
	END
}
has_commands() { [ "$(commands | wc -l)" -eq 7 ]; }
eight_seeds() {
	for step in 0-norm-layer 1-norm-rms; do
		[ "$(ls -d "$tree"/runs/norms/$step-[1-8]-*/done | wc -l)" -eq 8 ] || return
	done
}
reported() { in_copy "make -s report" | tee "$scratch/report"; }
begins() {
	grep -qxF 'dot attention, learned positions, LayerNorm or RMSNorm, GELU, 1 x 16, AdamW 3e-3, text' "$scratch/report"
}
# The words of the page, for whatever the small models have learnt.
has_verdict() {
	grep -Eq '^1-norm-rms +((better|worse|open( \([a-z0-9 ]+\))?)§?|not decidable◊) ' "$scratch/report" &&
		grep -Eq 'corrected for 1 comparison|No comparison can be judged' "$scratch/report"
}

echo 1..14
tap "the tree is copied" copy_tree
tap "what is configured is made small" make_it_short
tap "the page has its commands" has_commands
export PATH="$scratch/bin:$PATH"
use_it
tap "every step has eight seeds" eight_seeds
tap "the report is made" reported
tap "it begins with what was compared" begins
tap "it has a verdict" has_verdict
