#!/bin/bash
# docs/add-a-variant.md works as it stands: its blocks are put into a copy of the tree, where its
# commands configure, audit and train the variant.
page=docs/add-a-variant.md
. tools/testing/follow_page.sh

chosen() { grep -qx 'CONFIG_ATTENTION_COS=y' "$tree/.config"; }
audited() { in_copy "make audit" | tee "$scratch/audit" && grep -q 'audits, passed$' "$scratch/audit"; }
compared() { grep -q '^oracle *ok *logits in double: ' "$scratch/audit"; }
# The formula of the code above, changed: the oracle must notice.
changed() {
	sed -i 's|o->scale / (double)|1.001 * o->scale / (double)|' "$tree/models/attention/cos.c"
	! in_copy "make audit" >"$scratch/audit" && grep -q '^oracle *FAILED logits in double: ' "$scratch/audit"
}
# Without an oracle the audits say so, and gradients are still compared.
alone() {
	sed -i 's| models/oracle/cos.o||' "$tree/models/Makefile"
	in_copy "make audit" >"$scratch/audit" && grep -q "^oracle *ok *no oracle: attention 'cos'" "$scratch/audit" &&
		grep -q '^oracle *ok *gradients in float32: ' "$scratch/audit"
}
trained() {
	grep -q 'h\.1\.attn\.q_norm\.weight' "$tree"/runs/smoke/*/*.safetensors &&
		ls "$tree"/runs/smoke/*/done
}

refused() { # the exported code does not compute the variant
	! in_copy "make export RUN=smoke/0-baseline OUT=exported" 2>"$scratch/refusal" &&
		grep -qF 'export: CONFIG_ATTENTION=cos: the exported code does not compute it' "$scratch/refusal" &&
		[ ! -e "$tree/exported" ]
}

echo 1..14
tap "the tree is copied" copy_tree
tap "the page names three new files and two lines, none in core/" read_page <<-END
	create models/attention/cos.c
	create models/attention/cos.kconfig
	insert models/attention/Kconfig
	insert models/Makefile
	create models/oracle/cos.c
END
tap "they fit into the tree" follow_page
use_it
tap "the variant was chosen" chosen
tap "its audits passed" audited
tap "two programs were compared" compared
tap "the weights that were trained are the variant's" trained
tap "make export refuses it by name" refused
tap "another formula fails" changed
tap "without its oracle it passes, and says so" alone
