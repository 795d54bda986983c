/* Minimum-weight perfect matching of single shots: under per-shot weights, and under fixed weights for the
 * complementary gap.
 *
 * A shot has few detection events, and an edge between two of them matters only if it is shorter than matching both to
 * the boundary. So: distances to the boundary for every node (Dijkstra, Numer. Math. 1, 269, 1959), then from each
 * event as far as that bound allows; the events split into clusters; each cluster is matched by a depth-first search
 * that a dual bound prunes. Exact in double precision. A cluster whose search exceeds its budget of steps is left to
 * the caller. An edge of negative weight is selected first: its ends are toggled, and its weight becomes positive.
 *
 * Under fixed weights all distances are computed once. The gap then needs only the cluster of the extra detector that
 * stands for the observable (see logical_classes.py): other clusters have the same weight in both logical classes.
 *
 * Python calls the functions through ctypes, which releases the GIL and assumes no version of Python. With its headers
 * the library is also an (empty) extension module under the stable ABI, which a wheel for every Python needs; a machine
 * with a compiler but no headers still builds it.
 */
#if defined(__has_include)
#if __has_include(<Python.h>)
#define HAVE_PYTHON_H
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#endif
#endif
#include <float.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FAR DBL_MAX
#define CLUSTER 64  /* detection events of one cluster are bits of one word */
#define BUDGET 50000 /* steps of one cluster's search */

typedef struct {
    int32_t nodes, edges;
    const int32_t *ends;  /* [edges][2], -1 is the boundary */
    const int32_t *start; /* [nodes + 2]: links of node v are start[v] .. start[v + 1]; those of the boundary last */
    const int32_t *near;  /* node at the other end of a link, -1 is the boundary */
    const int32_t *via;   /* edge of a link */
    double *weights;      /* [edges], none below 0 */
    double *bound;        /* [nodes]: distance to the boundary */
    int32_t *home;        /* [nodes]: first edge of the path to the boundary */
    double *dist;         /* [nodes]: distance from the current source */
    int32_t *came;        /* [nodes][nodes]: edge on the path back to the i-th detection event */
    double *heap;
    int32_t *heap_node;
    int32_t *fired;  /* [nodes]: nodes with a detection event */
    int32_t *parent; /* [nodes]: union-find of the clusters */
    double *apart;   /* [nodes][nodes]: distance of two events, FAR if matching both to the boundary is shorter */
} Graph;

typedef struct {
    int size, steps;
    double best;                          /* weight above the dual bound; after pair_up, total weight */
    double cost[CLUSTER][CLUSTER];        /* distance of a pair; on the diagonal, distance to the boundary */
    double spare[CLUSTER][CLUSTER + 1];   /* cost of a choice above the dual bound, ascending */
    uint8_t choice[CLUSTER][CLUSTER + 1]; /* partner, or the node itself for the boundary */
    int choices[CLUSTER];
    uint8_t mate[CLUSTER], found[CLUSTER];
} Pairing;

static int push(Graph *g, int size, double key, int32_t node) {
    int here = size;
    while (here > 0) {
        int up = (here - 1) / 2;
        if (g->heap[up] <= key) break;
        g->heap[here] = g->heap[up];
        g->heap_node[here] = g->heap_node[up];
        here = up;
    }
    g->heap[here] = key;
    g->heap_node[here] = node;
    return size + 1;
}

static int pop(Graph *g, int size) {
    double key = g->heap[--size];
    int32_t node = g->heap_node[size];
    int here = 0;
    for (;;) {
        int down = 2 * here + 1;
        if (down >= size) break;
        if (down + 1 < size && g->heap[down + 1] < g->heap[down]) down++;
        if (g->heap[down] >= key) break;
        g->heap[here] = g->heap[down];
        g->heap_node[here] = g->heap_node[down];
        here = down;
    }
    g->heap[here] = key;
    g->heap_node[here] = node;
    return size;
}

/* Distances from `source` (g->nodes: the boundary), and the edges of the paths back. With `bound`, nodes at least as
 * far away as the sum of both distances to the boundary are not expanded. */
static void explore(Graph *g, int32_t source, const double *bound, double *dist, int32_t *came) {
    int size = 0;
    for (int32_t v = 0; v < g->nodes; v++) dist[v] = FAR;
    int32_t u = source;
    double d = 0;
    if (source < g->nodes) dist[source] = 0;
    for (;;) {
        if (bound == NULL || bound[source] == FAR || bound[u] == FAR || d < bound[source] + bound[u]) {
            for (int32_t link = g->start[u]; link < g->start[u + 1]; link++) {
                int32_t v = g->near[link];
                if (v < 0) continue;
                double there = d + g->weights[g->via[link]];
                if (there < dist[v]) {
                    dist[v] = there;
                    came[v] = g->via[link];
                    size = push(g, size, there, v);
                }
            }
        }
        do {
            if (size == 0) return;
            d = g->heap[0];
            u = g->heap_node[0];
            size = pop(g, size);
        } while (d > dist[u]);
    }
}

static void search(Pairing *c, uint64_t left, double spent) {
    if (left == 0) {
        c->best = spent;
        memcpy(c->found, c->mate, sizeof c->mate);
        return;
    }
    int i = __builtin_ctzll(left);
    left &= left - 1;
    for (int k = 0; k < c->choices[i]; k++) {
        double cost = spent + c->spare[i][k];
        if (cost >= c->best || ++c->steps > BUDGET) return;
        int j = c->choice[i][k];
        if (j != i && !(left >> j & 1)) continue;
        c->mate[i] = (uint8_t)j;
        search(c, j == i ? left : left & ~(1ULL << j), cost);
    }
}

/* Minimum-weight matching of c->size members, to each other or to the boundary, under c->cost; 0 if the search takes
 * too long. */
static int pair_up(Pairing *c) {
    double dual[CLUSTER], lower = 0, (*cost)[CLUSTER] = c->cost;
    int n = c->size;
    /* A feasible dual: dual_i + dual_j <= cost_ij, dual_i <= cost_ii. First half of the cheapest pair of each, ... */
    for (int i = 0; i < n; i++) {
        dual[i] = cost[i][i];
        for (int j = 0; j < n; j++)
            if (j != i && cost[i][j] / 2 < dual[i]) dual[i] = cost[i][j] / 2;
    }
    /* ... then each raised as far as the others allow. */
    for (int i = 0; i < n; i++) {
        double slack = cost[i][i] - dual[i];
        for (int j = 0; j < n; j++)
            if (j != i && cost[i][j] - dual[i] - dual[j] < slack) slack = cost[i][j] - dual[i] - dual[j];
        if (slack > 0) dual[i] += slack;
    }
    for (int i = 0; i < n; i++) lower += dual[i];
    for (int i = 0; i < n; i++) {
        c->choices[i] = 0;
        for (int j = i; j < n; j++) {
            if (cost[i][j] == FAR) continue;
            double spare = cost[i][j] - dual[i] - (j == i ? 0 : dual[j]);
            int k = c->choices[i]++;
            for (; k > 0 && c->spare[i][k - 1] > spare; k--) {
                c->spare[i][k] = c->spare[i][k - 1];
                c->choice[i][k] = c->choice[i][k - 1];
            }
            c->spare[i][k] = spare > 0 ? spare : 0; /* negative only by rounding */
            c->choice[i][k] = (uint8_t)j;
        }
    }
    c->best = FAR;
    c->steps = 0;
    search(c, n == 64 ? ~0ULL : (1ULL << n) - 1, 0);
    int solved = c->best < FAR && c->steps <= BUDGET;
    c->best += lower;
    return solved;
}

/* Toggle the edges on the path from `node` to `goal` (-1: the boundary). */
static void walk(const Graph *g, int32_t node, int32_t goal, const int32_t *came, uint8_t *taken) {
    while (node != goal) {
        int32_t edge = came[node], other = g->ends[2 * edge + 1];
        taken[edge] ^= 1;
        node = other < 0 ? -1 : g->ends[2 * edge] + other - node;
    }
}

static int32_t root_of(const int32_t *parent, int32_t i) {
    while (parent[i] != i) i = parent[i];
    return i;
}

static int match(Graph *g, Pairing *c, int32_t n_fired, uint8_t *taken) {
    explore(g, g->nodes, NULL, g->bound, g->home);
    for (int32_t i = 0; i < n_fired; i++) g->parent[i] = i;
    for (int32_t i = 0; i < n_fired; i++) {
        int32_t from = g->fired[i];
        if (i + 1 < n_fired) explore(g, from, g->bound, g->dist, g->came + (size_t)i * g->nodes);
        for (int32_t j = i + 1; j < n_fired; j++) {
            double apart = g->dist[g->fired[j]], one = g->bound[from], two = g->bound[g->fired[j]];
            int useful = apart < FAR && (one == FAR || two == FAR || apart < one + two);
            g->apart[(size_t)i * g->nodes + j] = useful ? apart : FAR;
            if (useful) g->parent[root_of(g->parent, j)] = root_of(g->parent, i);
        }
    }
    int32_t member[CLUSTER];
    for (int32_t root = 0; root < n_fired; root++) {
        if (g->parent[root] != root) continue;
        c->size = 0;
        for (int32_t i = 0; i < n_fired; i++) {
            if (root_of(g->parent, i) != root) continue;
            if (c->size == CLUSTER) return 0;
            member[c->size++] = i;
        }
        for (int i = 0; i < c->size; i++) {
            c->cost[i][i] = g->bound[g->fired[member[i]]];
            for (int j = i + 1; j < c->size; j++)
                c->cost[i][j] = c->cost[j][i] = g->apart[(size_t)member[i] * g->nodes + member[j]];
        }
        if (!pair_up(c)) return 0;
        for (int i = 0; i < c->size; i++) {
            int j = c->found[i];
            int32_t from = member[i];
            if (j == i)
                walk(g, g->fired[from], -1, g->home, taken);
            else if (j > i) {
                walk(g, g->fired[member[j]], g->fired[from], g->came + (size_t)from * g->nodes, taken);
                c->found[j] = (uint8_t)i; /* the pair is done */
            }
        }
    }
    return 1;
}

/* Decodes events [shots][nodes] (modified) under log_odds [shots / copies][edges]; weights are their negatives.
 * Writes the selected edges, taken [shots][edges], and done [shots], 0 for shots that the caller must decode.
 * Returns -1 if out of memory. */
int autoqec_match_1(int64_t shots, int64_t copies, int32_t nodes, int32_t edges, const int32_t *ends,
                    const int32_t *start, const int32_t *near, const int32_t *via, const float *log_odds,
                    uint8_t *events, uint8_t *taken, uint8_t *done) {
    size_t n = (size_t)nodes, m = (size_t)edges, links = (size_t)start[nodes + 1] + 1;
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via};
    double *reals = malloc(sizeof(double) * (m + 2 * n + links + n * n));
    int32_t *ints = malloc(sizeof(int32_t) * (3 * n + links + n * n));
    Pairing *pairing = malloc(sizeof(Pairing));
    if (reals == NULL || ints == NULL || pairing == NULL) {
        free(reals), free(ints), free(pairing);
        return -1;
    }
    g.weights = reals, g.bound = reals + m, g.dist = g.bound + n, g.heap = g.dist + n, g.apart = g.heap + links;
    g.home = ints, g.fired = ints + n, g.parent = g.fired + n, g.heap_node = g.parent + n, g.came = g.heap_node + links;
    for (int64_t shot = 0; shot < shots; shot++) {
        const float *row = log_odds + (shot / copies) * edges;
        uint8_t *fires = events + shot * nodes, *takes = taken + shot * edges;
        for (int32_t e = 0; e < edges; e++) {
            takes[e] = row[e] > 0;
            g.weights[e] = row[e] > 0 ? row[e] : -(double)row[e];
            if (row[e] > 0) {
                fires[ends[2 * e]] ^= 1;
                if (ends[2 * e + 1] >= 0) fires[ends[2 * e + 1]] ^= 1;
            }
        }
        int32_t n_fired = 0;
        for (int32_t v = 0; v < nodes; v++)
            if (fires[v]) g.fired[n_fired++] = v;
        done[shot] = n_fired == 0 || match(&g, pairing, n_fired, takes);
    }
    free(reals), free(ints), free(pairing);
    return 0;
}

/* Distances under fixed weights [edges], none below 0, for autoqec_gap_1: bound [nodes] to the boundary, and apart
 * [nodes][nodes], FAR if matching both nodes to the boundary is no longer. Returns -1 if out of memory. */
int autoqec_distances_1(int32_t nodes, int32_t edges, const int32_t *ends, const int32_t *start, const int32_t *near,
                        const int32_t *via, double *weights, double *bound, double *apart) {
    size_t n = (size_t)nodes, links = (size_t)start[nodes + 1] + 1;
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via};
    double *heap = malloc(sizeof(double) * links);
    int32_t *ints = malloc(sizeof(int32_t) * (links + n));
    if (heap == NULL || ints == NULL) {
        free(heap), free(ints);
        return -1;
    }
    g.weights = weights, g.bound = bound, g.heap = heap, g.heap_node = ints, g.came = ints + links;
    explore(&g, nodes, NULL, bound, g.came);
    for (int32_t u = 0; u < nodes; u++) {
        double *row = apart + u * n;
        explore(&g, u, bound, row, g.came);
        for (int32_t v = 0; v < nodes; v++)
            if (bound[u] < FAR && bound[v] < FAR && row[v] >= bound[u] + bound[v]) row[v] = FAR;
    }
    free(heap), free(ints);
    return 0;
}

/* The cluster of the last node among the detection events `fired`: its members, that node first; 0 if too large. */
static int last_nodes_cluster(int32_t nodes, const double *apart, int32_t *fired, int n_fired, int32_t *member) {
    int size = 1;
    member[0] = nodes - 1;
    for (int i = 0; i < size; i++) {
        const double *row = apart + (size_t)member[i] * nodes;
        for (int k = 0; k < n_fired;) {
            if (row[fired[k]] == FAR) {
                k++;
                continue;
            }
            if (size == CLUSTER) return 0;
            member[size++] = fired[k];
            fired[k] = fired[--n_fired];
        }
    }
    return size;
}

/* Weight of the minimum-weight matching of `size` nodes; -1 if the search takes too long. */
static double weight_of(Pairing *c, int32_t nodes, const double *bound, const double *apart, const int32_t *member,
                        int size) {
    if (size == 0) return 0;
    if (size == 1) return bound[member[0]];
    c->size = size;
    for (int i = 0; i < size; i++) {
        c->cost[i][i] = bound[member[i]];
        for (int j = i + 1; j < size; j++)
            c->cost[i][j] = c->cost[j][i] = apart[(size_t)member[i] * nodes + member[j]];
    }
    return pair_up(c) ? c->best : -1;
}

/* Complementary gaps of bit-packed detection events [shots][row_bytes], little-endian. node_of [8 * row_bytes]: node of
 * each detector, -1 for those out of the sector. gauge [nodes] of 0 and 1: the last node, which stands for the
 * observable, has an event in the class "not flipped" if the gauges of the events sum to 1. Writes gap [shots], weight
 * of "flipped" minus weight of "not flipped", and done [shots], 0 for shots that the caller must decode. Returns -1 if
 * out of memory. */
int autoqec_gap_1(int64_t shots, int64_t row_bytes, int32_t nodes, const int32_t *node_of, const uint8_t *gauge,
                  const double *bound, const double *apart, const uint8_t *events, float *gap, uint8_t *done) {
    Pairing *pairing = malloc(sizeof(Pairing));
    int32_t *fired = malloc(sizeof(int32_t) * (size_t)nodes), member[CLUSTER];
    if (pairing == NULL || fired == NULL) {
        free(pairing), free(fired);
        return -1;
    }
    for (int64_t shot = 0; shot < shots; shot++) {
        const uint8_t *row = events + shot * row_bytes;
        int n_fired = 0, parity = 0;
        for (int64_t byte = 0; byte < row_bytes; byte++)
            for (unsigned bits = row[byte]; bits; bits &= bits - 1) {
                int32_t node = node_of[8 * byte + __builtin_ctz(bits)];
                if (node < 0) continue;
                fired[n_fired++] = node;
                parity ^= gauge[node];
            }
        int size = last_nodes_cluster(nodes, apart, fired, n_fired, member);
        done[shot] = 0;
        if (size == 0) continue;
        double with = weight_of(pairing, nodes, bound, apart, member, size);
        double without = weight_of(pairing, nodes, bound, apart, member + 1, size - 1);
        if (with < 0 || without < 0 || with == FAR || without == FAR) continue;
        gap[shot] = (float)(parity ? without - with : with - without);
        done[shot] = 1;
    }
    free(pairing), free(fired);
    return 0;
}

#ifdef HAVE_PYTHON_H
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_match",
    .m_doc = "Weighted matching and complementary gaps in C; called by autoqec.qec.weighted_mwpm."};

PyMODINIT_FUNC PyInit__match(void) { return PyModuleDef_Init(&module); }
#endif
