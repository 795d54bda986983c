/* Minimum-weight perfect matching of single shots: under per-shot weights, and under fixed weights for the
 * complementary gap.
 *
 * Detection events are matched by blossom.c. The radius of an event seldom exceeds the length of a few edges, so each
 * event is explored (Dijkstra, Numer. Math. 1, 269, 1959) half a mean edge far at first, and twice as far whenever its
 * radius gets there. Two events meet at the nodes that both reach: if their distance is at most the sum of the distances
 * up to which both are explored, one of them reaches a node on the shortest path that the other reaches too. Exact up to
 * rounding, for which the search allows 1e-9 of half a mean edge. An edge of negative weight is selected first: its ends
 * are toggled, and its weight becomes positive.
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
#define SUBSET_MEMBERS 8 /* above, the search is faster */
#define FIRST_REACH 0.5 /* mean weights of an edge: how far each event is explored at first */
#define MAX_NODES 65536 /* a node is the low bits of a heap entry */

#include "blossom.c"

typedef struct {
    int32_t nodes, edges;
    const int32_t *ends;  /* [edges][2], -1 is the boundary */
    const int32_t *start; /* [nodes + 2]: links of node v are start[v] .. start[v + 1]; those of the boundary last */
    const int32_t *near;  /* node at the other end of a link, -1 is the boundary */
    const int32_t *via;   /* edge of a link */
    const double *weights; /* [edges], none below 0 */
} Graph;

/* What one exploration finds, from a node to those around it. */
typedef struct {
    uint64_t *heap;           /* [links + 1], see entry_of */
    double *dist;             /* [nodes]: upper bounds, exact below `reach`; FAR for nodes not reached */
    int32_t *came;            /* [nodes]: edge on the path back */
    int32_t *touched, n;      /* the nodes reached */
    double bound;             /* distance to the boundary, FAR if it is not reached */
    int32_t exit_node, exit;  /* where the path to the boundary ends: its last node and edge */
    int all;                  /* whether no node is left to reach */
    int32_t end;              /* a node that is reached and never left, or -1 */
} Search;

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

/* Distances from `from` to all nodes closer than `reach` and to their neighbours. With `to_boundary`, `reach` ends at the
 * boundary. A node is expanded again if rounding in the heap took it too early; 0 if that exceeds the heap, for which no
 * weights of a device are known. */
static int explore(const Graph *g, Search *s, int32_t from, double reach, int to_boundary) {
    double *dist = s->dist;
    int size = 0;
    int32_t pushes = g->start[g->nodes + 1];
    while (s->n > 0) dist[s->touched[--s->n]] = FAR;
    dist[from] = 0;
    s->bound = FAR;
    s->touched[s->n++] = from;
    s->all = 0;
    int32_t u = from;
    for (;;) {
        double d = dist[u];
        if (d >= reach) return 1;
        for (int32_t link = g->start[u]; (u != s->end || u == from) && link < g->start[u + 1]; link++) {
            int32_t v = g->near[link], edge = g->via[link];
            double there = d + g->weights[edge];
            if (v < 0) {
                if (to_boundary && there < s->bound) {
                    s->bound = there;
                    s->exit_node = u;
                    s->exit = edge;
                    if (there < reach) reach = there;
                }
            } else if (there < dist[v]) {
                if (dist[v] == FAR) s->touched[s->n++] = v;
                dist[v] = there;
                s->came[v] = edge;
                if (there >= reach) continue;
                if (pushes-- == 0) return 0;
                size = push(s->heap, size, entry_of(there, v));
            }
        }
        uint64_t top;
        do {
            if (size == 0) {
                s->all = reach == FAR;
                return 1;
            }
            top = s->heap[0];
            u = (int32_t)(top & (MAX_NODES - 1));
            size = pop(s->heap, size);
        } while (top != entry_of(dist[u], u)); /* a shorter path was found meanwhile */
    }
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

/* That an event reaches a node. */
typedef struct {
    double dist;
    int32_t event, came; /* came: edge on the path back to the event */
    int32_t next;        /* the node's next one, or -1 */
} Reach;

/* Memory of one batch. */
typedef struct {
    const Graph *g;
    Search search;
    Blossoms blossoms;
    double *weights;
    int32_t *node_of;                /* [nodes]: node of each event */
    int32_t *exit_node, *exit;       /* [nodes]: by event, see Search */
    int32_t *reached;                /* [nodes]: first Reach of each node, or -1 */
    Reach *reach;
    int32_t reaches, reach_capacity;
    int32_t *meet, meet_capacity;    /* by pair: a node of its shortest path that both events reach */
    double *least;                   /* [nodes]: by event, distance to the one that is explored; FAR outside `widen` */
    int32_t *where, *found;          /* [nodes]: by event, the node that this distance is by way of; events found */
    double no_boundary;              /* takes the place of the distance to the boundary if there is none */
} Memory;

static void release_search(Search *s) { free(s->heap), free(s->dist), free(s->came), free(s->touched); }

static int reserve_search(Search *s, const Graph *g) {
    size_t n = (size_t)g->nodes;
    *s = (Search){.end = -1, .heap = malloc(sizeof(uint64_t) * ((size_t)g->start[n + 1] + 1)), .dist = malloc(sizeof(double) * n)};
    s->came = malloc(sizeof(int32_t) * n), s->touched = malloc(sizeof(int32_t) * n);
    for (size_t v = 0; s->dist && v < n; v++) s->dist[v] = FAR;
    return s->heap && s->dist && s->came && s->touched;
}

static void release(Memory *m) {
    release_search(&m->search), release_blossoms(&m->blossoms);
    free(m->weights), free(m->node_of), free(m->exit_node), free(m->exit), free(m->reached), free(m->reach);
    free(m->meet), free(m->least), free(m->where), free(m->found);
}

/* Reserve memory for `g`; 0 if there is none. */
static int reserve(Memory *m, const Graph *g) {
    size_t n = (size_t)g->nodes;
    int ready = reserve_search(&m->search, g);
    ready &= reserve_blossoms(&m->blossoms, g->nodes);
    m->g = g;
    m->weights = malloc(sizeof(double) * ((size_t)g->edges + 1));
    m->node_of = malloc(sizeof(int32_t) * n), m->reached = malloc(sizeof(int32_t) * n);
    m->exit_node = malloc(sizeof(int32_t) * n), m->exit = malloc(sizeof(int32_t) * n);
    m->where = malloc(sizeof(int32_t) * n), m->found = malloc(sizeof(int32_t) * n);
    m->least = malloc(sizeof(double) * n);
    m->reach_capacity = m->meet_capacity = 1024;
    m->reach = malloc(sizeof(Reach) * (size_t)m->reach_capacity);
    m->meet = malloc(sizeof(int32_t) * (size_t)m->meet_capacity);
    for (size_t i = 0; m->least && i < n; i++) m->least[i] = FAR;
    return ready && m->weights && m->node_of && m->reached && m->exit_node && m->exit && m->where && m->found &&
           m->least && m->reach && m->meet;
}

/* The Reach of an event at a node that it reaches, or -1. */
static int32_t reach_of(const Memory *m, int32_t event, int32_t node) {
    int32_t r = m->reached[node];
    while (r >= 0 && m->reach[r].event != event) r = m->reach[r].next;
    return r;
}

/* Note that an event reaches a node, and the events that it meets there. Returns their number in m->found. */
static int32_t reach_node(Memory *m, int32_t event, int32_t node, int32_t n_found) {
    double dist = m->search.dist[node];
    int32_t own = -1;
    for (int32_t r = m->reached[node]; r >= 0; r = m->reach[r].next) {
        int32_t other = m->reach[r].event;
        double pair = dist + m->reach[r].dist;
        if (other == event) {
            own = r;
        } else if (pair < m->least[other]) {
            if (m->least[other] == FAR) m->found[n_found++] = other;
            m->least[other] = pair, m->where[other] = node;
        }
    }
    if (own < 0) {
        if (m->reaches == m->reach_capacity)
            m->reach = grown(&m->blossoms, m->reach, &m->reach_capacity, sizeof(Reach));
        if (m->blossoms.failed) return n_found;
        own = m->reaches++;
        m->reach[own] = (Reach){.event = event, .next = m->reached[node]};
        m->reached[node] = own;
    }
    m->reach[own].dist = dist, m->reach[own].came = m->search.came[node];
    return n_found;
}

/* Record the distance of a pair, m->least[other], unless both are closer to the boundary. */
static void note_pair(Memory *m, int32_t event, int32_t other) {
    Blossoms *b = &m->blossoms;
    double pair = m->least[other];
    if (pair >= b->node[event].bound + b->node[other].bound) return;
    int32_t h = b->node[event].halves;
    while (h >= 0 && b->half[h].to != other) h = b->half[h].next;
    if (h < 0) h = add_pair(b, event, other, pair);
    if (b->failed || pair > b->half[h].cost) return;
    b->half[h].cost = b->half[h ^ 1].cost = pair;
    while (h / 2 >= m->meet_capacity && !b->failed) m->meet = grown(b, m->meet, &m->meet_capacity, sizeof(int32_t));
    if (!b->failed) m->meet[h / 2] = m->where[other];
}

/* Explore twice as far around an event as before. */
static int widen(Blossoms *b, int32_t event) {
    Memory *m = b->context;
    Search *s = &m->search;
    Node *node = b->node + event;
    double before = node->known;
    if (!explore(m->g, s, m->node_of[event], 2 * before, 1)) return 0;
    node->known = s->all || s->bound <= 2 * before ? FAR : 2 * before;
    if (s->bound < node->bound) node->bound = s->bound, m->exit_node[event] = s->exit_node, m->exit[event] = s->exit;
    int32_t n_found = 0;
    int first = reach_of(m, event, m->node_of[event]) < 0;
    for (int32_t i = 0; i < s->n; i++) /* nodes that were expanded before keep their distances */
        if (first || s->dist[s->touched[i]] >= before) n_found = reach_node(m, event, s->touched[i], n_found);
    b->work += s->n;
    for (int32_t i = 0; i < n_found; i++) {
        note_pair(m, event, m->found[i]);
        m->least[m->found[i]] = FAR;
    }
    return !b->failed;
}

/* Toggle the edges on the path from `node` back to the event. */
static void walk(const Memory *m, int32_t event, int32_t node, uint8_t *taken) {
    while (node != m->node_of[event]) {
        int32_t edge = m->reach[reach_of(m, event, node)].came;
        taken[edge] ^= 1;
        node = m->g->ends[2 * edge] + m->g->ends[2 * edge + 1] - node;
    }
}

/* Let an event take part, which is at m->node_of[b->n]. Returns its vertex, or -1 if memory does not suffice. */
static int32_t add_event(Memory *m, double first_reach) {
    Blossoms *b = &m->blossoms;
    int32_t v = add_vertex(b, m->no_boundary, first_reach / 2);
    m->exit[v] = -1;
    return widen(b, v) ? v : -1;
}

/* Match events, to each other or to the boundary; 0 if that is impossible, or if memory or work does not suffice. */
static int match_events(Memory *m, int32_t n_fired, double first_reach, int64_t most_work) {
    Blossoms *b = &m->blossoms;
    clear_blossoms(b, most_work, first_reach);
    b->widen = widen, b->context = m;
    m->reaches = 0;
    for (int32_t v = 0; v < m->g->nodes; v++) m->reached[v] = -1;
    for (int32_t i = 0; i < n_fired; i++) {
        int32_t v = add_event(m, first_reach);
        if (v < 0 || insert(b, v) == FAR) return 0;
    }
    return lift(b);
}

/* Match events as above, and toggle the edges of their paths. */
static int match(Memory *m, int32_t n_fired, double first_reach, uint8_t *taken) {
    Blossoms *b = &m->blossoms;
    if (!match_events(m, n_fired, first_reach, INT64_MAX)) return 0;
    resolve(b);
    for (int32_t v = 0; v < n_fired; v++) {
        int32_t mate = b->node[v].mate;
        if (mate < UNMATCHED) {
            if (m->exit[v] < 0) return 0; /* an odd number of events without boundary */
            taken[m->exit[v]] ^= 1;
            walk(m, v, m->exit_node[v], taken);
        } else if (b->half[mate].to > v) {
            walk(m, v, m->meet[mate / 2], taken);
            walk(m, b->half[mate].to, m->meet[mate / 2], taken);
        }
    }
    return 1;
}

static double first_reach_of(const Graph *g, double sum) { return FIRST_REACH * sum / (g->edges + 1) + DBL_MIN; }

/* Match one shot under weights clipped to +-clip. fires [nodes] is modified, taken [edges] is written; 0 if the caller
 * must decode the shot. */
static int match_shot(const Graph *g, Memory *m, const float *log_odds, float clip, uint8_t *fires, uint8_t *taken) {
    double sum = 0;
    for (int32_t e = 0; e < g->edges; e++) {
        float weight = log_odds[e] > 0 ? log_odds[e] : -log_odds[e];
        m->weights[e] = weight < clip ? weight : clip;
        sum += m->weights[e];
        taken[e] = log_odds[e] > 0;
    }
    for (int32_t e = 0; e < g->edges; e++) {
        if (!taken[e]) continue;
        fires[g->ends[2 * e]] ^= 1;
        if (g->ends[2 * e + 1] >= 0) fires[g->ends[2 * e + 1]] ^= 1;
    }
    int32_t n_fired = 0;
    for (int32_t v = 0; v < g->nodes; v++)
        if (fires[v]) m->node_of[n_fired++] = v;
    m->no_boundary = 2 * sum + 1; /* more than any matching without */
    return match(m, n_fired, first_reach_of(g, sum), taken);
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
    int ready = reserve(&m, &g);
    g.weights = m.weights;
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
 * log_odds is not finite. `checked`: an earlier call with the same arrays did not return -2. */
int autoqec_soft_2(int checked, int64_t shots, int64_t row_bytes, int32_t nodes, int32_t edges, const int32_t *ends,
                   const int32_t *start, const int32_t *near, const int32_t *via, int32_t observables,
                   const int32_t *node_of, const uint8_t *flips, float clip, const float *log_odds,
                   const uint8_t *events, uint8_t *flipped, uint8_t *done) {
    Graph g = {.nodes = nodes, .edges = edges, .ends = ends, .start = start, .near = near, .via = via};
    Memory m = {0};
    if (shots < 0 || row_bytes < 0 || observables < 1 || !(checked || is_graph(&g))) return -2;
    uint8_t *fires = malloc((size_t)nodes), *taken = malloc((size_t)edges + 1);
    int status = reserve(&m, &g) && fires && taken ? 0 : -1;
    if (status == 0 && !checked && !is_numbering(node_of, 8 * row_bytes, nodes, fires)) status = -2;
    g.weights = m.weights;
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

#include "complementary_gap.c"

#ifdef HAVE_PYTHON_H
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "_match",
    .m_doc = "Weighted matching and complementary gaps in C; called by autoqec.qec.weighted_mwpm."};

PyMODINIT_FUNC PyInit__match(void) { return PyModuleDef_Init(&module); }
#endif
