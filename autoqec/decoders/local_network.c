/* Log-odds of a translation-invariant network (modules/local.py) from bit-packed shots.
 *
 * The window of an edge holds few detection events, often none. The first layer is linear in them: the sum of a row
 * for the window's constant inputs and of one row per event. Windows without events, with one, and (where the table
 * is small) with two are looked up. Edges whose windows have the same constant inputs share a kind, and its
 * entries of the table. The others go through the network in tiles, which keep activations in the cache.
 *
 * Python calls the functions through ctypes, which releases the GIL. It builds all arrays itself (local_forward.py), so
 * their contents are not checked here.
 */
#if defined(__has_include)
#if __has_include(<Python.h>)
#define HAVE_PYTHON_H
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#endif
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 6   /* windows that share the loads of weights; their sums fit into the registers */
#define TILE 48  /* windows per tile, a multiple of ROWS */
#define DENSE_RESIDUAL 2 /* kind of a dense layer: in + relu(layer(in)); 1 is relu(layer(in)), and 0 is linear */

/* The same struct is declared in local_forward.py. All widths are padded with zeros to a multiple of 32. Slots are the
 * edges that have windows, ordered by class. Entries of a kind: no event; then a single event at point b at
 * b (b + 1) / 2, and events at points a < b at 1 + a after it, or, without pairs, single events alone. */
typedef struct {
    int32_t edges, slots, width, layers, small, words, has_pairs;
    const float *quiet;         /* [kinds][width]: first layer of a window without events */
    const float *rows;          /* [rows][width]: what an event at a point of a window adds to it */
    const float *trunk;         /* [layers][width + 1][width]: by inputs, the bias last */
    const float *heads;         /* [classes]: [width] and bias, or [width + 1][small], [small] and bias */
    const float *empty;         /* [edges]: log-odds where the window has no events */
    const float *prior;         /* [slots] */
    const int32_t *edge_of, *kind_of; /* [slots] */
    const int32_t *class_of;    /* [kinds] */
    const int64_t *first_row;   /* [kinds + 1], into row_of */
    const int32_t *row_of;      /* row of each point of a kind */
    const int64_t *first_link;  /* [bits + 1]: links of a detector, to the slots whose windows it is in */
    const int32_t *links;       /* [links][2]: slot, and the point of its window; words hold one bit per point */
    const int64_t *first_entry; /* [kinds + 1], into table */
    const float *table;
} Network;

typedef struct {
    int n;
    float *in, *out;      /* [TILE][width] */
    float *to[TILE];      /* where to write the log-odds */
    float prior[TILE];
    int32_t class[TILE];
    const float **terms;  /* [64 words + 1] */
} Tile;

typedef struct {
    void (*append)(const Network *, Tile *, int32_t, int, float, float *);
    void (*windows)(const Network *, Tile *, const uint64_t *, const int32_t *, int32_t, float *);
    void (*finish)(const Network *, Tile *);
    void (*dense)(const float *, float *, const float *, int, int, int);
} Kernel;

static size_t head_size(const Network *net) {
    size_t width = (size_t)net->width, small = (size_t)net->small;
    return small ? (width + 2) * small + 1 : width + 1;
}

#define LANES 4
#define TARGET
#define NAMED(name) name##_4
#include "local_kernel.c"

#if defined(__x86_64__) && defined(__GNUC__)
#define LANES 8
#define TARGET __attribute__((target("avx2,fma")))
#define NAMED(name) name##_8
#include "local_kernel.c"

#define LANES 16
#define TARGET __attribute__((target("avx512f")))
#define NAMED(name) name##_16
#include "local_kernel.c"
#endif

static const Kernel *kernel_of_processor(void) {
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return &kernel_16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &kernel_8;
#endif
    return &kernel_4;
}

static int reserve(Tile *tile, const Network *net) {
    size_t floats = (size_t)TILE * (size_t)net->width;
    tile->n = 0;
    tile->in = calloc(floats, sizeof(float));
    tile->out = calloc(floats, sizeof(float));
    tile->terms = malloc(sizeof(float *) * (64 * (size_t)net->words + 1));
    return tile->in && tile->out && tile->terms;
}

static void release(Tile *tile) { free(tile->in), free(tile->out), free(tile->terms); }

/* Write the entries of `kinds` kinds; net->table is not read. Returns -1 if out of memory. */
int autoqec_local_table_1(const Network *net, int32_t kinds, float *table) {
    const Kernel *kernel = kernel_of_processor();
    Tile tile;
    int ready = reserve(&tile, net);
    for (int32_t kind = 0; ready && kind < kinds; kind++) {
        float *to = table + net->first_entry[kind];
        const int32_t *rows = net->row_of + net->first_row[kind];
        int64_t points = net->first_row[kind + 1] - net->first_row[kind];
        tile.terms[0] = net->quiet + (size_t)kind * net->width;
        kernel->append(net, &tile, kind, 1, 0, to++);
        for (int64_t b = 0; b < points; b++) {
            tile.terms[1] = net->rows + (size_t)rows[b] * net->width;
            kernel->append(net, &tile, kind, 2, 0, to++);
            for (int64_t a = 0; net->has_pairs && a < b; a++) {
                /* In the order of `windows`, so that the sums are equal. */
                tile.terms[1] = net->rows + (size_t)rows[a] * net->width;
                tile.terms[2] = net->rows + (size_t)rows[b] * net->width;
                kernel->append(net, &tile, kind, 3, 0, to++);
            }
        }
    }
    if (ready) kernel->finish(net, &tile);
    release(&tile);
    return ready ? 0 : -1;
}

/* Mark the detection events of a shot in the windows of all slots. */
static void mark(const Network *net, const uint8_t *shot, int64_t row_bytes, uint64_t *masks) {
    memset(masks, 0, sizeof(uint64_t) * (size_t)net->slots * (size_t)net->words);
    for (int64_t byte = 0; byte < row_bytes; byte++)
        for (unsigned bits = shot[byte]; bits; bits &= bits - 1) {
            const int64_t *range = net->first_link + 8 * byte + __builtin_ctz(bits);
            for (const int32_t *link = net->links + 2 * range[0]; link < net->links + 2 * range[1]; link += 2)
                masks[(size_t)link[0] * net->words + (link[1] >> 6)] |= 1ULL << (link[1] & 63);
        }
}

/* How many events a window has, 3 for more than two. */
static int count_events(const uint64_t *masks, int32_t words) {
    int n = 0;
    for (int32_t word = 0; word < words; word++) {
        uint64_t mask = masks[word], rest = mask & (mask - 1);
        n += (mask != 0) + (rest != 0) + ((rest & (rest - 1)) != 0);
    }
    return n < 3 ? n : 3;
}

/* Which windows to look up, and which to evaluate: both lists [slots] of slots, without branches per slot. */
static void sort_windows(const Network *net, const uint64_t *masks, int32_t *known, int32_t *n_known, int32_t *other,
                         int32_t *n_other) {
    int32_t k = 0, o = 0, most = net->has_pairs ? 2 : 1;
    for (int32_t slot = 0; slot < net->slots; slot++) {
        /* The usual number of words is a constant here, so that the loop is unrolled. */
        int n = net->words == 1 ? count_events(masks + slot, 1)
                                : count_events(masks + (size_t)slot * net->words, net->words);
        known[k] = other[o] = slot;
        k += n > 0 && n <= most;
        o += n > most;
    }
    *n_known = k, *n_other = o;
}

/* Write the log-odds of windows with one event, or two. */
static void look_up(const Network *net, const uint64_t *masks, const int32_t *slots, int32_t n, float *row) {
    for (int32_t i = 0; i < n; i++) {
        int32_t slot = slots[i];
        int64_t point[2] = {-1, -1}; /* the last, and the one before it */
        for (int32_t word = 0; word < net->words; word++)
            for (uint64_t mask = masks[(size_t)slot * net->words + word]; mask; mask &= mask - 1)
                point[1] = point[0], point[0] = 64 * word + __builtin_ctzll(mask);
        int64_t b = point[0], entry = net->has_pairs ? 2 + b * (b + 1) / 2 + point[1] : 1 + b;
        row[net->edge_of[slot]] = net->prior[slot] + net->table[net->first_entry[net->kind_of[slot]] + entry];
    }
}

/* Write the log-odds [shots][edges] of bit-packed detection events [shots][row_bytes], little-endian. Returns -1 if out
 * of memory. */
int autoqec_local_1(const Network *net, int64_t shots, int64_t row_bytes, const uint8_t *events, float *log_odds) {
    const Kernel *kernel = kernel_of_processor();
    size_t slots = (size_t)net->slots;
    Tile tile;
    uint64_t *masks = malloc(sizeof(uint64_t) * (slots * (size_t)net->words + 1));
    int32_t *known = malloc(sizeof(int32_t) * (slots + 1)), *other = malloc(sizeof(int32_t) * (slots + 1));
    int ready = reserve(&tile, net) && masks && known && other;
    for (int64_t shot = 0; ready && shot < shots; shot++) {
        float *row = log_odds + shot * net->edges;
        int32_t n_known, n_other;
        memcpy(row, net->empty, sizeof(float) * (size_t)net->edges);
        mark(net, events + shot * row_bytes, row_bytes, masks);
        sort_windows(net, masks, known, &n_known, other, &n_other);
        look_up(net, masks, known, n_known, row);
        kernel->windows(net, &tile, masks, other, n_other, row);
    }
    if (ready) kernel->finish(net, &tile);
    release(&tile), free(masks), free(known), free(other);
    return ready ? 0 : -1;
}

#include "dense_network.c"

#ifdef HAVE_PYTHON_H
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_local",
    .m_doc = "Networks in C; called by autoqec.decoders.local_forward and autoqec.decoders.single_shot."};

PyMODINIT_FUNC PyInit__local(void) { return PyModuleDef_Init(&module); }
#endif
