/*
 * metric_names - how the values that a run records are called.
 *
 * Every name is spelled here, and only here: tools/results/metric_names.py reads these lines for
 * the scripts.  A name may have parts below it, after a slash: "val/loss/recall", "grad_norm/h.0".
 */
#ifndef CORE_UTIL_METRIC_NAMES_H
#define CORE_UTIL_METRIC_NAMES_H

#define METRIC_TRAIN "train"
#define METRIC_TRAIN_LOSS "train/loss"
#define METRIC_VALIDATION_LOSS "val/loss"
#define METRIC_VALIDATION_ACCURACY "val/accuracy"
#define METRIC_VALIDATION_FLOOR "val/floor"
#define METRIC_VALIDATION_BITS_PER_BYTE "val/bits_per_byte"
#define METRIC_DATA_TRAINING "rows/training"
#define METRIC_DATA_TRAINING_TARGETS "rows/training_targets"
#define METRIC_DATA_VALIDATION "rows/validation"
#define METRIC_DATA_VALIDATION_TARGETS "rows/validation_targets"
#define METRIC_DATA_VALIDATION_LOSS "rows/validation_loss"
#define METRIC_DATA_VALIDATION_ACCURACY "rows/validation_accuracy"
#define METRIC_CHANCE "chance"
#define METRIC_JUDGED_BY_ACCURACY "judged_by_accuracy"
#define METRIC_LENGTH "length"
#define METRIC_LEARNING_RATE "learning_rate"
#define METRIC_GRAD_NORM "grad_norm"
#define METRIC_CLIPPED "clipped"
#define METRIC_PARAMETERS "parameters"
#define METRIC_FLOPS_PER_TOKEN "flops_per_token"
#define METRIC_TOKENS_PER_SECOND "tokens_per_second"
#define METRIC_DECODE_TOKEN_BYTES "decode_token_bytes"
#define METRIC_SPARSITY "sparsity"
#define METRIC_COMPRESSED_BYTES "compressed_bytes"
#define METRIC_ARENA_MEGABYTES "arena_megabytes"
#define METRIC_PEAK_MEGABYTES "peak_megabytes"
#define METRIC_DEVICE_MEGABYTES "device_megabytes"
#define METRIC_ATTENTION_ENTROPY "attention/entropy"
#define METRIC_ATTENTION_RECIPROCITY "attention/reciprocity"
#define METRIC_ROUTING_KEPT "routing/kept"
#define METRIC_ROUTING_MASS "routing/mass"
#define METRIC_ROUTING_SPREAD "routing/spread"
#define METRIC_ROUTING_LAYERS "routing/layers"
#define METRIC_GATE_MEAN "gate/mean"
#define METRIC_ALPHA "alpha"
#define METRIC_WS_SIMILARITY "ws/similarity"
#define METRIC_WS_OUTSIDE "ws/outside"
#define METRIC_HEADS_INFORMATION "heads/information"
#define METRIC_HEADS_SHUFFLED "heads/shuffled"

#endif
