/* Minimum-weight perfect matching of single shots: under per-shot weights, and under fixed weights for the
 * complementary gap.
 *
 * A shot has few detection events, and a pair of them matters only if it is closer than both are to the boundary
 * together. So each event is explored (Dijkstra, Numer. Math. 1, 269, 1959) only as far as its own distance to the
 * boundary: a shorter path between two events is within reach of one or the other at every node. The events split into
 * clusters; each cluster is matched by a depth-first search that a dual bound prunes. Exact in double precision. A
 * cluster whose search exceeds its budget of steps is left to the caller. An edge of negative weight is selected first:
 * its ends are toggled, and its weight becomes positive.
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

#define SUBSET_MEMBERS 7 /* above, the search is faster */
#define MAX_NODES 65536 /* a node is the low bits of a heap entry */

typedef struct {
    int32_t nodes, edges;
    const int32_t *ends;  /* [edges][2], -1 is the boundary */
    const int32_t *start; /* [nodes + 2]: links of node v are start[v] .. start[v + 1]; those of the boundary last */
    const int32_t *near;  /* node at the other end of a link, -1 is the boundary */
    const int32_t *via;   /* edge of a link */
    const double *weights; /* [edges], none below 0 */
    uint64_t *heap;       /* [links + 1], see entry_of */
} Graph;

/* A detection event and the nodes around it. */
typedef struct {
    int32_t node, parent;      /* parent: union-find of the clusters */
    double bound;              /* distance to the boundary, FAR if there is none */
    int32_t exit_node, exit;   /* where the path to the boundary ends: its last node and edge */
    int32_t first, last;       /* range of the nodes reached */
    double *dist;              /* [nodes]: upper bounds, exact below `bound`; FAR for nodes not reached */
    int32_t *came;             /* [nodes]: edge on the path back to the event */
} Event;

typedef struct {
    int size, steps;
    double best;                          /* weight above the dual bound; after pair_up, total weight */
    double dual[CLUSTER];
    double cost[CLUSTER][CLUSTER];        /* distance of a pair; on the diagonal, distance to the boundary */
    double spare[CLUSTER][CLUSTER + 1];   /* cost of a choice above the dual bound, ascending */
    uint8_t choice[CLUSTER][CLUSTER + 1]; /* partner, or the node itself for the boundary */
    int choices[CLUSTER];
    uint8_t mate[CLUSTER], found[CLUSTER];
} Pairing;

/* A heap entry orders by distance, rounded down by less than 2^-36 of itself, with the node in the low 16 bits. */
static uint64_t entry_of(double distance, int32_t node) {
    uint64_t bits;
    memcpy(&bits, &distance, sizeof bits); /* not negative: the bits of doubles order like their values */
    return (bits & ~(uint64_t)(MAX_NODES - 1)) | (uint64_t)node;
}

static int push(uint64_t *heap, int size, uint64_t entry) {
    int here = size;
    while (here > 0) {
        int up = (here - 1) / 2;
        if (heap[up] <= entry) break;
        heap[here] = heap[up];
        here = up;
    }
    heap[here] = entry;
    return size + 1;
}

static int pop(uint64_t *heap, int size) {
    uint64_t entry = heap[--size];
    int here = 0;
    for (;;) {
        int down = 2 * here + 1;
        if (down >= size) break;
        if (down + 1 < size) down += heap[down + 1] < heap[down];
        if (heap[down] >= entry) break;
        heap[here] = heap[down];
        here = down;
    }
    heap[here] = entry;
    return size;
}

/* Distances from e->node to all nodes closer than `reach` and to their neighbours. With `to_boundary`, `reach` ends at
 * the boundary, whose distance is e->bound. A node is expanded again if rounding in the heap took it too early; 0 if
 * that exceeds the heap, for which no weights of a device are known. */
static int explore(const Graph *g, Event *e, double reach, int to_boundary) {
    double *dist = e->dist;
    int size = 0;
    int32_t pushes = g->start[g->nodes + 1];
    for (int32_t v = 0; v < g->nodes; v++) dist[v] = FAR;
    dist[e->node] = 0;
    e->bound = FAR;
    e->first = e->last = e->node;
    int32_t u = e->node;
    for (;;) {
        double d = dist[u];
        if (d >= reach) return 1;
        for (int32_t link = g->start[u]; link < g->start[u + 1]; link++) {
            int32_t v = g->near[link], edge = g->via[link];
            double there = d + g->weights[edge];
            if (v < 0) {
                if (to_boundary && there < e->bound) {
                    e->bound = there;
                    e->exit_node = u;
                    e->exit = edge;
                    if (there < reach) reach = there;
                }
            } else if (there < dist[v]) {
                dist[v] = there;
                e->came[v] = edge;
                if (v < e->first) e->first = v;
                if (v > e->last) e->last = v;
                if (there >= reach) continue;
                if (pushes-- == 0) return 0;
                size = push(g->heap, size, entry_of(there, v));
            }
        }
        uint64_t top;
        do {
            if (size == 0) return 1;
            top = g->heap[0];
            u = (int32_t)(top & (MAX_NODES - 1));
            size = pop(g->heap, size);
        } while (top != entry_of(dist[u], u)); /* a shorter path was found meanwhile */
    }
}

/* Distance of two events by way of the nodes that both reach; FAR if there are none. */
static double distance(const Event *a, const Event *b) {
    int32_t v = a->first > b->first ? a->first : b->first, last = a->last < b->last ? a->last : b->last;
    double least[4] = {FAR, FAR, FAR, FAR};
    for (; v + 3 <= last; v += 4)
        for (int k = 0; k < 4; k++) {
            double sum = a->dist[v + k] + b->dist[v + k];
            least[k] = sum < least[k] ? sum : least[k];
        }
    for (; v <= last; v++) {
        double sum = a->dist[v] + b->dist[v];
        least[0] = sum < least[0] ? sum : least[0];
    }
    for (int k = 1; k < 4; k++)
        if (least[k] < least[0]) least[0] = least[k];
    return least[0];
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

/* Find a dual bound of the c->size members under c->cost, and sort the choices of each by their cost above it. */
static void prepare(Pairing *c) {
    double *dual = c->dual, (*cost)[CLUSTER] = c->cost;
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
}

/* Minimum-weight matching of the prepared members from `first` on, to each other or to the boundary; 0 if the search
 * takes too long. */
static int pair_up(Pairing *c, int first) {
    c->best = FAR;
    c->steps = 0;
    search(c, c->size > first ? (~0ULL >> (CLUSTER - c->size + first)) << first : 0, 0);
    int solved = c->best < FAR && c->steps <= BUDGET;
    for (int i = first; i < c->size; i++) c->best += c->dual[i];
    return solved;
}

/* Toggle the edges on the path from `node` back to the event. */
static void walk(const Graph *g, const Event *e, int32_t node, uint8_t *taken) {
    while (node != e->node) {
        int32_t edge = e->came[node];
        taken[edge] ^= 1;
        node = g->ends[2 * edge] + g->ends[2 * edge + 1] - node;
    }
}

/* Toggle the edges on the shortest path between two events, which `distance` found to be `apart`. */
static void join(const Graph *g, const Event *a, const Event *b, double apart, uint8_t *taken) {
    int32_t v = 0;
    while (v + 1 < g->nodes && a->dist[v] + b->dist[v] > apart) v++;
    walk(g, a, v, taken);
    walk(g, b, v, taken);
}

static int32_t root_of(const Event *events, int32_t i) {
    while (events[i].parent != i) i = events[i].parent;
    return i;
}

/* Match the members of one cluster, in c->cost their distances, and toggle the edges of their paths. */
static int match_cluster(const Graph *g, const Event *events, const int32_t *member, Pairing *c, uint8_t *taken) {
    prepare(c);
    if (!pair_up(c, 0)) return 0;
    for (int i = 0; i < c->size; i++) {
        const Event *e = events + member[i];
        int j = c->found[i];
        if (j == i) {
            taken[e->exit] ^= 1;
            walk(g, e, e->exit_node, taken);
        } else if (j > i) {
            join(g, e, events + member[j], c->cost[i][j], taken);
            c->found[j] = (uint8_t)i; /* the pair is done */
        }
    }
    return 1;
}

static int match(const Graph *g, Pairing *c, Event *events, int32_t n_fired, double *apart, uint8_t *taken) {
    for (int32_t i = 0; i < n_fired; i++) {
        events[i].parent = i;
        if (!explore(g, events + i, FAR, 1)) return 0;
        for (int32_t j = 0; j < i; j++) {
            double pair = distance(events + i, events + j), bound = events[i].bound + events[j].bound;
            int useful = pair < FAR && pair < bound; /* bound: infinite without a boundary */
            apart[(size_t)i * g->nodes + j] = useful ? pair : FAR;
            if (useful) events[root_of(events, j)].parent = root_of(events, i);
        }
    }
    int32_t member[CLUSTER];
    for (int32_t root = 0; root < n_fired; root++) {
        if (events[root].parent != root) continue;
        c->size = 0;
        for (int32_t i = 0; i < n_fired; i++) {
            if (root_of(events, i) != root) continue;
            if (c->size == CLUSTER) return 0;
            member[c->size++] = i;
        }
        for (int i = 0; i < c->size; i++) {
            c->cost[i][i] = events[member[i]].bound;
            for (int j = 0; j < i; j++) c->cost[i][j] = c->cost[j][i] = apart[(size_t)member[i] * g->nodes + member[j]];
        }
        if (!match_cluster(g, events, member, c, taken)) return 0;
    }
    return 1;
}

/* Whether the arrays describe a graph: every index in range, and every link at the ends of its edge. */
static int is_graph(const Graph *g) {
    int64_t links = 0;
    if (g->nodes < 1 || g->nodes > MAX_NODES || g->edges < 0 || g->edges > INT32_MAX / 2 || g->start[0] != 0) return 0;
    for (int32_t e = 0; e < g->edges; e++) {
        int32_t u = g->ends[2 * e], v = g->ends[2 * e + 1];
        if (u < 0 || u >= g->nodes || v < -1 || v >= g->nodes || u == v) return 0;
    }
    for (int32_t u = 0; u <= g->nodes; u++) {
        if (g->start[u + 1] < g->start[u] || g->start[u + 1] > 2 * g->edges) return 0;
        for (int32_t link = g->start[u]; link < g->start[u + 1]; link++, links++) {
            int32_t v = g->near[link], e = g->via[link], here = u < g->nodes ? u : -1;
            if (e < 0 || e >= g->edges) return 0;
            int32_t a = g->ends[2 * e], b = g->ends[2 * e + 1];
            if (!((a == here && b == v) || (a == v && b == here))) return 0;
        }
    }
    return links == 2 * (int64_t)g->edges;
}

/* Memory of one batch. Events hold rows of `dist` and `came`; there are as many as nodes. */
typedef struct {
    double *weights, *dist, *apart;
    int32_t *came;
    uint64_t *heap;
    Event *events;
    Pairing *pairing;
} Memory;

static void release(Memory *m) {
    free(m->weights), free(m->dist), free(m->apart), free(m->came), free(m->heap), free(m->events), free(m->pairing);
}

/* Reserve memory for `g` and events at `rows` nodes at once; 0 if there is none. */
static int reserve(Memory *m, const Graph *g, size_t rows) {
    size_t n = (size_t)g->nodes, links = (size_t)g->start[g->nodes + 1];
    m->weights = malloc(sizeof(double) * ((size_t)g->edges + 1));
    m->dist = malloc(sizeof(double) * n * rows);
    m->apart = malloc(sizeof(double) * n * rows);
    m->came = malloc(sizeof(int32_t) * n * rows);
    m->heap = malloc(sizeof(uint64_t) * (links + 1));
    m->events = malloc(sizeof(Event) * rows);
    m->pairing = malloc(sizeof(Pairing));
    if (!m->weights || !m->dist || !m->apart || !m->came || !m->heap || !m->events || !m->pairing) return 0;
    for (size_t i = 0; i < rows; i++) {
        m->events[i].dist = m->dist + i * n;
        m->events[i].came = m->came + i * n;
    }
    return 1;
}

/* Match one shot under weights clipped to +-clip. fires [nodes] is modified, taken [edges] is written; 0 if the caller
 * must decode the shot. */
static int match_shot(const Graph *g, Memory *m, const float *log_odds, float clip, uint8_t *fires, uint8_t *taken) {
    for (int32_t e = 0; e < g->edges; e++) {
        float weight = log_odds[e] > 0 ? log_odds[e] : -log_odds[e];
        m->weights[e] = weight < clip ? weight : clip;
        taken[e] = log_odds[e] > 0;
    }
    for (int32_t e = 0; e < g->edges; e++) {
        if (!taken[e]) continue;
        fires[g->ends[2 * e]] ^= 1;
        if (g->ends[2 * e + 1] >= 0) fires[g->ends[2 * e + 1]] ^= 1;
    }
    int32_t n_fired = 0;
    for (int32_t v = 0; v < g->nodes; v++)
        if (fires[v]) m->events[n_fired++].node = v;
    return match(g, m->pairing, m->events, n_fired, m->apart, taken);
}

/* Decodes events [shots][nodes] (modified) under log_odds [shots / copies][edges]; weights are their negatives.
 * Writes the selected edges, taken [shots][edges], and done [shots], 0 for shots that the caller must decode.
 * Returns -1 if out of memory, -2 if the arrays describe no graph. */
int autoqec_match_1(int64_t shots, int64_t copies, int32_t nodes, int32_t edges, const int32_t *ends,
                    const int32_t *start, const int32_t *near, const int32_t *via, const float *log_odds,
                    uint8_t *events, uint8_t *taken, uint8_t *done) {
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via};
    Memory m = {0};
    if (shots < 0 || copies < 1 || !is_graph(&g)) return -2;
    int ready = reserve(&m, &g, (size_t)nodes);
    g.weights = m.weights, g.heap = m.heap;
    for (int64_t shot = 0; ready && shot < shots; shot++)
        done[shot] = (uint8_t)match_shot(&g, &m, log_odds + (shot / copies) * edges, FLT_MAX, events + shot * nodes,
                                         taken + shot * edges);
    release(&m);
    return ready ? 0 : -1;
}

/* Whether node_of [bits] gives each node below `limit` at most once, and else -1; seen [limit] is cleared first. */
static int is_numbering(const int32_t *node_of, int64_t bits, int32_t limit, uint8_t *seen) {
    memset(seen, 0, (size_t)limit);
    for (int64_t k = 0; k < bits; k++)
        if (node_of[k] < -1 || node_of[k] >= limit || (node_of[k] >= 0 && seen[node_of[k]]++)) return 0;
    return 1;
}

/* Predictions of bit-packed detection events [shots][row_bytes], little-endian, each under its own log_odds
 * [shots][edges], clipped to +-clip. node_of [8 * row_bytes]: node of each detector, -1 for those out of the sector.
 * flips [edges][observables] of 0 and 1. Writes flipped [shots][observables] and done [shots], 0 for shots that the
 * caller must decode. Returns -1 if out of memory, -2 if the arrays describe no graph or numbering, -3 if a value of
 * log_odds is not finite. */
int autoqec_soft_1(int64_t shots, int64_t row_bytes, int32_t nodes, int32_t edges, const int32_t *ends,
                   const int32_t *start, const int32_t *near, const int32_t *via, int32_t observables,
                   const int32_t *node_of, const uint8_t *flips, float clip, const float *log_odds,
                   const uint8_t *events, uint8_t *flipped, uint8_t *done) {
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via};
    Memory m = {0};
    if (shots < 0 || row_bytes < 0 || observables < 1 || !is_graph(&g)) return -2;
    uint8_t *fires = malloc((size_t)nodes), *taken = malloc((size_t)edges + 1);
    int status = reserve(&m, &g, (size_t)nodes) && fires && taken ? 0 : -1;
    if (status == 0 && !is_numbering(node_of, 8 * row_bytes, nodes, fires)) status = -2;
    g.weights = m.weights, g.heap = m.heap;
    for (int64_t shot = 0; status == 0 && shot < shots; shot++) {
        const float *row = log_odds + shot * edges;
        int finite = 1;
        for (int32_t e = 0; e < edges; e++) finite &= row[e] <= FLT_MAX && row[e] >= -FLT_MAX;
        if (!finite) {
            status = -3;
            break;
        }
        memset(fires, 0, (size_t)nodes);
        for (int64_t byte = 0; byte < row_bytes; byte++)
            for (unsigned bits = events[shot * row_bytes + byte]; bits; bits &= bits - 1) {
                int32_t node = node_of[8 * byte + __builtin_ctz(bits)];
                if (node >= 0) fires[node] = 1;
            }
        done[shot] = (uint8_t)match_shot(&g, &m, row, clip, fires, taken);
        uint8_t *prediction = flipped + shot * observables;
        memset(prediction, 0, (size_t)observables);
        for (int32_t e = 0; e < edges; e++)
            if (taken[e])
                for (int32_t k = 0; k < observables; k++) prediction[k] ^= flips[(int64_t)e * observables + k];
    }
    release(&m), free(fires), free(taken);
    return status;
}

/* Distances under fixed weights [edges], none below 0, for autoqec_gap_1: bound [nodes] to the boundary, and apart
 * [nodes][nodes], FAR if matching both nodes to the boundary is no longer. Returns -1 if out of memory, -2 if the
 * arrays describe no graph with such weights. */
int autoqec_distances_1(int32_t nodes, int32_t edges, const int32_t *ends, const int32_t *start, const int32_t *near,
                        const int32_t *via, const double *weights, double *bound, double *apart) {
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via};
    Memory m = {0};
    double farthest = 0;
    if (!is_graph(&g)) return -2;
    for (int32_t e = 0; e < edges; e++)
        if (!(weights[e] >= 0 && weights[e] < FAR)) return -2;
    int ready = reserve(&m, &g, 1);
    g.weights = weights, g.heap = m.heap;
    for (int32_t u = 0; ready && u < nodes; u++) {
        m.events->node = u;
        ready = explore(&g, m.events, FAR, 1);
        bound[u] = m.events->bound;
        if (bound[u] > farthest) farthest = bound[u];
    }
    for (int32_t u = 0; ready && u < nodes; u++) {
        double *row = m.events->dist = apart + (size_t)u * (size_t)nodes;
        m.events->node = u;
        ready = explore(&g, m.events, bound[u] + farthest, 0);
        for (int32_t v = 0; v < nodes; v++)
            if (row[v] >= bound[u] + bound[v]) row[v] = FAR;
    }
    release(&m);
    return ready ? 0 : -1;
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

/* Weights of the minimum-weight matchings of a cluster, with and without member 0; for few members, by dynamic
 * programming over subsets. -1 if the search takes too long. */
static void class_weights(Pairing *c, int32_t nodes, const double *bound, const double *apart, const int32_t *member,
                          int size, double *with, double *without) {
    if (size > SUBSET_MEMBERS) {
        c->size = size;
        for (int i = 0; i < size; i++) {
            c->cost[i][i] = bound[member[i]];
            for (int j = 0; j < i; j++)
                c->cost[i][j] = c->cost[j][i] = apart[(size_t)member[i] * (size_t)nodes + member[j]];
        }
        prepare(c);
        *with = pair_up(c, 0) ? c->best : -1;
        *without = pair_up(c, 1) ? c->best : -1;
        return;
    }
    double least[1 << SUBSET_MEMBERS] = {0}; /* by subset; member 0 is the highest bit, as partners are lower bits */
    for (unsigned set = 1; set < 1u << size; set++) {
        int top = 31 - __builtin_clz(set);
        unsigned rest = set ^ 1u << top;
        const double *row = apart + (size_t)member[size - 1 - top] * nodes;
        double best = bound[member[size - 1 - top]] + least[rest];
        for (unsigned left = rest; left; left &= left - 1) {
            int other = __builtin_ctz(left);
            double weight = row[member[size - 1 - other]] + least[rest ^ 1u << other];
            if (weight < best) best = weight;
        }
        least[set] = best < FAR ? best : FAR;
    }
    *with = least[(1u << size) - 1];
    *without = least[(1u << (size - 1)) - 1];
}

/* Complementary gaps of bit-packed detection events [shots][row_bytes], little-endian. node_of [8 * row_bytes]: node of
 * each detector, -1 for those out of the sector. gauge [nodes] of 0 and 1: the last node, which stands for the
 * observable, has an event in the class "not flipped" if the gauges of the events sum to 1. Writes gap [shots], weight
 * of "flipped" minus weight of "not flipped", and done [shots], 0 for shots that the caller must decode. Returns -1 if
 * out of memory, -2 if node_of names a node twice, the last node, or none that exists. */
int autoqec_gap_1(int64_t shots, int64_t row_bytes, int32_t nodes, const int32_t *node_of, const uint8_t *gauge,
                  const double *bound, const double *apart, const uint8_t *events, float *gap, uint8_t *done) {
    if (shots < 0 || row_bytes < 0 || nodes < 1 || nodes > MAX_NODES) return -2;
    Pairing *pairing = malloc(sizeof(Pairing));
    int32_t *fired = malloc(sizeof(int32_t) * (size_t)nodes), member[CLUSTER];
    int status = pairing == NULL || fired == NULL ? -1 : 0;
    if (status == 0 && !is_numbering(node_of, 8 * row_bytes, nodes - 1, (uint8_t *)fired)) status = -2;
    if (status != 0) {
        free(pairing), free(fired);
        return status;
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
        double with, without;
        class_weights(pairing, nodes, bound, apart, member, size, &with, &without);
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
