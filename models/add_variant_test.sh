#!/bin/bash
# docs/add-a-variant.md works as it stands: its blocks are put into a copy of the tree, where its
# commands configure, audit and train the variant.
page=docs/add-a-variant.md
. tools/testing/follow_page.sh

chosen() { grep -qx "CONFIG_$1=y" "$tree/.config"; }
audited() { in_copy "make audit" | tee "$scratch/audit" && grep -q 'audits, passed$' "$scratch/audit"; }
compared() { grep -q '^oracle *ok *logits in double: ' "$scratch/audit"; }
# The page's function of general ops, in place of project(): the same formula, as the oracle finds.
general() {
	local code=$tree/models/attention/cos.c

	cp "$code" "$scratch/cos.c" && sed -n '/^static struct tensor \*mix(/,/^}/p' "$page" >"$scratch/mix" &&
		awk -v mix="$scratch/mix" '
			/^static const struct attention_variant/ { while ((getline line < mix) > 0) print line }
			{ sub(/\.project = project/, ".mix = mix"); print }' "$scratch/cos.c" >"$code" &&
		grep -q '\.mix = mix' "$code" && audited && compared && cp "$scratch/cos.c" "$code"
}
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
trained() { # PARAMETER
	grep -q "$1" "$tree"/runs/smoke/*/*.safetensors && ls "$tree"/runs/smoke/*/done
}

refused() { # the exported code does not compute the variant
	! in_copy "make export RUN=smoke/0-baseline OUT=exported" 2>"$scratch/refusal" &&
		grep -qF 'export: CONFIG_ATTENTION=cos: the exported code does not compute it' "$scratch/refusal" &&
		[ ! -e "$tree/exported" ]
}

echo 1..22
tap "the tree is copied" copy_tree
tap "the page names three new files and two lines for each of two variants, none in core/" read_page <<-END
	create models/attention/cos.c
	create models/attention/cos.kconfig
	insert models/attention/Kconfig
	insert models/Makefile
	create models/oracle/cos.c
	create models/position/kerple.c
	create models/position/kerple.kconfig
	insert models/position/Kconfig
	insert models/Makefile
	create models/oracle/kerple.c
END
tap "they fit into the tree" follow_page
use_it
tap "the variant was chosen" chosen ATTENTION_COS
tap "its audits passed" audited
tap "two programs were compared" compared
tap "the weights that were trained are the variant's" trained 'h\.1\.attn\.q_norm\.weight'
tap "make export refuses it by name" refused
tap "by general ops it is the same attention" general
tap "another formula fails" changed
tap "without its oracle it passes, and says so" alone

section="A term of the scores"
use_it
tap "the term was chosen" chosen POS_KERPLE
tap "its audits passed" audited
tap "two programs were compared" compared
tap "its parameters were trained" trained 'h\.1\.attn\.kerple_s'
