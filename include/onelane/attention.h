/* Sparse-MLA decode attention of DeepSeek V4 and V4.1, split over the entries of a row: the C interface.
 *
 *   one query row  =  heads x 512 values at one position
 *   its entries    =  those that two index lists name: a window and an extra list, each in a paged pool of records
 *   out[h]         =  sum_t softmax(scale * q[h] . kv[t])[t] * kv[t], with a sink in the denominator
 *
 * A record is key and value at once. Optionally the last 64 dims of the output are rotated back (inverse RoPE), and it
 * is stored as e4m3 with a scale per 32 values.
 *
 * Use: fill an onelane_attention_shape, make a plan once, then run it as often as wanted, eagerly or under a CUDA
 * graph. A plan depends on what is captured (row count, heads, list widths, formats, device) and never on lengths or
 * indices, so a graph is always replayed with the plan it was captured with. A call allocates nothing, keeps no
 * counters, reads no host memory after it returns, and writes only `out`, `out_scales`, `lse` and its workspace.
 *
 * All pointers of onelane_attention_args are device pointers for the CUDA backend and host pointers for the CPU backend.
 * Nothing here throws, prints or aborts.
 */
#ifndef ONELANE_ATTENTION_H_
#define ONELANE_ATTENTION_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONELANE_ATTENTION_VERSION 1
#define ONELANE_ATTENTION_DIM 512      /* of a query head and of a record */
#define ONELANE_ATTENTION_ROPE_DIM 64  /* the last ones */
#define ONELANE_ATTENTION_MAX_HEADS 128
#define ONELANE_ATTENTION_MAX_ENTRIES 65536 /* of one row, both lists together */

#if defined(_WIN32)
#define ONELANE_API
#else
#define ONELANE_API __attribute__((visibility("default")))
#endif

/* How a record is stored. A page holds the data of its records one after another, then their scales likewise. */
typedef enum {
  ONELANE_KV_BF16 = 0,     /* 1024 B: 512 bf16; no scales */
  ONELANE_KV_V4 = 1,       /* 576 + 8 B: 448 e4m3, 64 bf16; scales 7 e8m0 (one per 64), 1 byte unused */
  ONELANE_KV_V41_FP8 = 2,  /* 512 + 16 B: 512 e4m3; scales 16 e8m0 (one per 32) */
  ONELANE_KV_V41_FP4 = 3   /* 256 + 32 B: 512 e2m1, even dim in the low nibble; scales 32 e4m3 (one per 16) */
} onelane_kv_format;

/* One list of entries a row. An index is page * page_records + place. Every index that is negative or not below
 * pages * page_records, and everything at or past a row's length, counts as no entry and is never followed. A record
 * with a NaN spoils the rows that attend to it, and no others; what they then hold is not specified. */
typedef struct {
  const void* pages;       /* base of the pool, 16-byte aligned */
  int64_t page_bytes;      /* from one page to the next, a multiple of 16 */
  int32_t page_records;    /* records in a page */
  int32_t pages_count;     /* pages in the pool */
  const int32_t* indices;  /* [rows, index_stride] */
  int64_t index_stride;    /* in indices, at least the plan's width */
  const int32_t* lengths;  /* [rows], or null: the whole width; values outside [0, width] are clamped */
} onelane_attention_list;

typedef enum {
  ONELANE_OUT_BF16 = 0,         /* out bf16 [rows, heads, 512] */
  ONELANE_OUT_FP8 = 1,          /* out e4m3 [rows, heads, 512], out_scales e8m0 [rows, heads, 16] */
  ONELANE_OUT_FP8_GROUPED = 2   /* for a grouped output projection, in groups of 8 heads: out e4m3
                                   [rows, heads/8, 16, 8, 32] (chunk of 32 dims, head of the group, dim); out_scales
                                   e8m0, 4 bytes packed, rows innermost: byte (c * 8 + h) of [heads/8, 32 words,
                                   padded rows], where padded rows = rows rounded up to a multiple of 4 */
} onelane_attention_output;

/* What a plan is made from. */
typedef struct {
  int32_t rows;          /* query rows of a call, padded ones included; at least 1 */
  int32_t heads;         /* 8, 16, 32, 64 or 128 */
  int32_t window_width;  /* indices a row in the window list; 0: no window list */
  int32_t extra_width;   /* the same of the extra list */
  onelane_kv_format window_format, extra_format;
  onelane_attention_output output;
  int32_t splits;        /* 0: chosen; else at most this many parts a row (1: unsplit) */
} onelane_attention_shape;

/* What plan() needs to know of a device. */
typedef struct {
  int32_t arch;              /* 10 * major + minor of the compute capability; 0: the CPU */
  int32_t processors;        /* multiprocessors, or threads of the CPU */
  int32_t shared_bytes;      /* shared memory that one block may ask for */
  int32_t cluster_blocks;    /* largest cluster that may be launched; 1: none */
  int32_t cluster_places[8]; /* clusters of 1, 2, .. 8 blocks that run at once; 0: not known */
} onelane_attention_device;

typedef enum {
  ONELANE_PATH_CPU = 0,
  ONELANE_PATH_CLUSTER = 1,  /* sm_90a: the parts of a row are the blocks of a cluster and merge in shared memory */
  ONELANE_PATH_COMBINE = 2   /* any: parts write partial results to the workspace, a second kernel merges them */
} onelane_attention_path;

typedef struct {
  onelane_attention_shape shape;
  onelane_attention_device device;
  onelane_attention_path path;
  int32_t splits;           /* parts of a row */
  int32_t block_heads;      /* heads of one block */
  int32_t chunks_as_few;    /* 1: blocks of 64 heads add up as those of 8 and 16 do, so that a split row has the same
                               bits (of outputs above 2^-24); slower. 0: in chunks that are full */
  int32_t shared_bytes;     /* of one block */
  int32_t reserved;         /* 0; so that no byte of a plan is padding */
  size_t workspace_bytes;   /* to be given to every run */
} onelane_attention_plan;

typedef struct {
  const void* q;      /* bf16 [rows, heads, 512], 16-byte aligned */
  onelane_attention_list window, extra;
  float scale;        /* of the scores, for instance 512^-0.5 */
  const float* sink;  /* [heads], natural log; -inf: none, +inf: the output is zero; null: none */
  /* Inverse RoPE of out[448:], pairs (2i, 2i+1): null positions for none. */
  const int32_t* positions;  /* [rows]; clamped to [0, angles_count) */
  const float* angles;       /* [angles_count, 64]: 32 cosines, then 32 sines */
  int32_t angles_count;
  void* out;          /* 16-byte aligned */
  void* out_scales;   /* null for bf16 */
  float* lse;         /* [rows, heads] natural log of the sum without the sink; +inf for a row without entries, whose
                         output is zero; null: not wanted */
  void* workspace;    /* plan.workspace_bytes, 16-byte aligned; one per run that may be in flight */
} onelane_attention_args;

/* Returns of all functions: 0, or one of these; onelane_attention_message then tells what is wrong and with what. */
typedef enum {
  ONELANE_ATTENTION_OK = 0,
  ONELANE_ATTENTION_INVALID = 1,      /* an argument is off */
  ONELANE_ATTENTION_UNSUPPORTED = 2,  /* no path for this shape on this device */
  ONELANE_ATTENTION_FAILED = 3        /* the device said no */
} onelane_attention_status;

/* The calling thread's last failure: a sentence, valid until its next call. */
ONELANE_API const char* onelane_attention_message(void);

/* A pure function of its arguments. */
ONELANE_API int onelane_attention_make_plan(const onelane_attention_shape* shape, const onelane_attention_device* device,
                                            onelane_attention_plan* plan);

/* CPU: every thread of `plan->device.processors`; returns when the output is written. */
ONELANE_API int onelane_attention_run_cpu(const onelane_attention_plan* plan, const onelane_attention_args* args);

/* CUDA; in a library built without it both return ONELANE_ATTENTION_UNSUPPORTED. `stream` is a cudaStream_t. Describe the
 * current device, enqueue one call. */
ONELANE_API int onelane_attention_describe_cuda(onelane_attention_device* device);
ONELANE_API int onelane_attention_run_cuda(const onelane_attention_plan* plan, const onelane_attention_args* args,
                                           void* stream);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONELANE_ATTENTION_H_ */
