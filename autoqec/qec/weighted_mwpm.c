/* Minimum-weight matching of single shots, each under weights of its own: no graph is built anew.
 *
 * A shot fires few detectors, and an edge between two of them matters only if it is shorter than sending both to the
 * boundary. So: distances to the boundary for every node (Dijkstra, Numer. Math. 1, 269, 1959), then from each fired
 * node as far as that bound reaches; the fired nodes fall into clusters; each cluster is paired up by depth-first
 * search, cut off by a dual bound. Exact in double precision. A cluster that needs more than BUDGET steps is left to
 * the caller. Negative weights: take the edge, toggle its ends, and let its weight be positive.
 *
 * weighted_mwpm.py calls autoqec_match_1 through ctypes: no version of Python is assumed. With its headers the
 * library is also an (empty) extension module under the stable ABI, which is what a wheel for every Python needs; a
 * machine that has a compiler but no headers still builds it.
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
#define CLUSTER 64  /* fired nodes of one cluster are bits of one word */
#define BUDGET 50000 /* steps of one cluster's search */

typedef struct {
    int32_t nodes, edges;
    const int32_t *ends;  /* [edges][2], -1 is the boundary */
    const int32_t *start; /* [nodes + 2]: links of node v are start[v] .. start[v + 1]; the boundary's come last */
    const int32_t *near;  /* node at the other end of a link, -1 is the boundary */
    const int32_t *via;   /* edge of a link */
    double *weights;      /* [edges], none below 0 */
    double *bound;        /* [nodes]: distance to the boundary */
    int32_t *home;        /* [nodes]: first edge of the way there */
    double *dist;         /* [nodes]: distance from the node last explored from */
    int32_t *came;        /* [nodes][nodes]: edge that leads back towards the i-th fired node */
    double *heap;
    int32_t *heap_node;
    int32_t *fired;  /* [nodes] */
    int32_t *parent; /* [nodes]: clusters of fired nodes */
    double *apart;   /* [nodes][nodes]: distance of two fired nodes, FAR where the boundary is nearer */
} Graph;

typedef struct {
    int size, steps;
    double best;
    double spare[CLUSTER][CLUSTER + 1];   /* cost of a choice above the dual bound, cheapest first */
    uint8_t choice[CLUSTER][CLUSTER + 1]; /* partner, or oneself for the boundary */
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

/* Distances from `source` (g->nodes: the boundary), and the edges that lead back. With `bound`, nodes as far away as
 * the boundary is from both ends lead nowhere new. */
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

/* The cheapest way to pair up the members or to send them to the boundary; 0 where the search is too long. */
static int pair_up(const Graph *g, Pairing *c, const int32_t *member) {
    double dual[CLUSTER], cost[CLUSTER][CLUSTER];
    int n = c->size;
    for (int i = 0; i < n; i++) {
        cost[i][i] = g->bound[g->fired[member[i]]];
        for (int j = i + 1; j < n; j++) cost[i][j] = cost[j][i] = g->apart[(size_t)member[i] * g->nodes + member[j]];
    }
    /* A feasible dual: dual_i + dual_j <= cost_ij, dual_i <= cost_ii. First half of each one's cheapest pair, ... */
    for (int i = 0; i < n; i++) {
        dual[i] = cost[i][i];
        for (int j = 0; j < n; j++)
            if (j != i && cost[i][j] / 2 < dual[i]) dual[i] = cost[i][j] / 2;
    }
    /* ... then each as high as the others leave it. */
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
            c->spare[i][k] = spare > 0 ? spare : 0; /* below 0 by rounding alone */
            c->choice[i][k] = (uint8_t)j;
        }
    }
    c->best = FAR;
    c->steps = 0;
    search(c, n == 64 ? ~0ULL : (1ULL << n) - 1, 0);
    return c->best < FAR && c->steps <= BUDGET;
}

/* Toggle the edges on the way from `node` to `goal` (-1: the boundary). */
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
        if (!pair_up(g, c, member)) return 0;
        for (int i = 0; i < c->size; i++) {
            int j = c->found[i];
            int32_t from = member[i];
            if (j == i)
                walk(g, g->fired[from], -1, g->home, taken);
            else if (j > i) {
                walk(g, g->fired[member[j]], g->fired[from], g->came + (size_t)from * g->nodes, taken);
                c->found[j] = (uint8_t)i; /* its partner's turn is over */
            }
        }
    }
    return 1;
}

/* shots rows of events [shots][nodes] (toggled in place) under rows of log_odds [shots / copies][edges], weights being
 * their negatives. Writes taken [shots][edges], and done [shots]: 0 where the caller must decode. -1: out of memory. */
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

#ifdef HAVE_PYTHON_H
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_match", .m_doc = "Weighted matching in C; called by autoqec.qec.weighted_mwpm."};

PyMODINIT_FUNC PyInit__match(void) { return PyModuleDef_Init(&module); }
#endif
