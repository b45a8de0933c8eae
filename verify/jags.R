# Rscript jags.R TABLE.csv COMPONENTS KIND LOCATIONS: the Gibbs sampler JAGS (Plummer, 2003), given
# the model and the prior as `docs/explanation/families.md` has them. The table is in the units of
# the study; LOCATIONS are mean counts, with commas between.
suppressMessages(library(rjags))
source(file.path(dirname(sub("--file=", "", grep("--file=", commandArgs(), value = TRUE))),
                 "posterior.R"))
DRAWS <- 2000
kind <- words[3]
DISPERSIONS <- c(1e-6, 2^seq(-6, 4, length.out = 17))  # the first stands for none

# of a row in component z[i], and of the parameters of component k, variable q
CELLS <- c(
  categorical = "x[i, q] ~ dcat(p[z[i], q, 1:sizes[q]])",
  gaussian = "x[i, q] ~ dnorm(m[z[i], q], t[z[i], q])",
  "student-t" = "x[i, q] ~ dt(m[z[i], q], t[z[i], q], 4)",
  poisson = "x[i, q] ~ dpois(m[z[i], q])",
  "negative-binomial" =
    "x[i, q] ~ dnegbin(1 / (1 + a[z[i], q] * m[z[i], q]), 1 / a[z[i], q])")
NUMBERS <- "t[k, q] ~ dgamma(1.5, 0.25)
            m[k, q] ~ dnorm(0, 0.01 * t[k, q])"
# a m / (1 + a m) ~ Beta(0.5, b / a + 1): log of its density for m, over that of Gamma(0.5, b)
BETA <- "m[k, q] ~ dgamma(0.5, 0.5 / location[q])
         j[k, q] ~ dcat(even)
         a[k, q] <- dispersions[j[k, q]]
         s[k, q] <- 0.5 / location[q] / a[k, q]
         extra[k, q] <- loggam(s[k, q] + 1.5) - loggam(s[k, q] + 1) - 0.5 * log(s[k, q])
           - (s[k, q] + 1.5) * log(1 + a[k, q] * m[k, q]) + 0.5 / location[q] * m[k, q]
         zero[k, q] ~ dpois(1000 - extra[k, q])"
PARAMETERS <- c(
  categorical = "p[k, q, 1:sizes[q]] ~ ddirch(half[1:sizes[q]])",
  gaussian = NUMBERS, "student-t" = NUMBERS,
  poisson = "m[k, q] ~ dgamma(0.5, 0.5 / location[q])",
  "negative-binomial" = BETA)
FULL <- "model {
  w ~ ddirch(alpha)
  for (i in 1:n) {
    z[i] ~ dcat(w)
    x[i, 1:d] ~ dmnorm(m[z[i], 1:d], t[z[i], 1:d, 1:d])
  }
  for (k in 1:C) {
    t[k, 1:d, 1:d] ~ dwish(spread, d + 2)
    u[k, 1:d] ~ dmnorm(origin, t[k, 1:d, 1:d])
    m[k, 1:d] <- 10 * u[k, 1:d]
  }
}"
model <- if (kind == "gaussian-full") FULL else sprintf("model {
  w ~ ddirch(alpha)
  for (i in 1:n) { z[i] ~ dcat(w); for (q in 1:d) { %s } }
  for (k in 1:C) { for (q in 1:d) { %s } }
}", CELLS[kind], PARAMETERS[kind])

x <- if (kind == "categorical") codes_of(words[1]) else as.matrix(read.csv(words[1]))
n <- nrow(x)
d <- ncol(x)
C <- components
data <- list(x = unname(x), n = n, d = d, C = C, alpha = rep(0.5, C))
if (kind == "categorical") {
  sizes <- apply(x, 2, max, na.rm = TRUE)
  data <- c(data, list(sizes = sizes, half = rep(0.5, max(sizes))))
} else if (kind == "gaussian-full") {
  data <- c(data, list(origin = rep(0, d), spread = diag(d) / 2))
} else if (kind %in% c("poisson", "negative-binomial")) {
  data$location <- as.numeric(strsplit(words[4], ",")[[1]])
}
if (kind == "negative-binomial")
  data <- c(data, list(dispersions = DISPERSIONS, even = rep(1 / 18, 18), zero = matrix(0, C, d)))

# log p(row | component) of what was drawn: (row, component)
density <- function(at) {
  sapply(seq_len(C), function(k) {
    if (kind == "gaussian-full") {
      precision <- matrix(at("t", k, d * d), d)
      apart <- t(x) - at("m", k, d)
      return(0.5 * log(det(precision)) - 0.5 * d * log(2 * pi)
             - 0.5 * colSums(apart * (precision %*% apart)))
    }
    cells <- sapply(seq_len(d), function(q) {
      m <- if (kind != "categorical") at("m", k, d)[q]
      switch(kind,
        categorical = log(at("p", k, d * max(sizes))[q + d * (x[, q] - 1)]),
        gaussian = dnorm(x[, q], m, at("t", k, d)[q]^-0.5, log = TRUE),
        "student-t" = {
          t <- at("t", k, d)[q]
          dt((x[, q] - m) * sqrt(t), 4, log = TRUE) + 0.5 * log(t)
        },
        poisson = dpois(x[, q], m, log = TRUE),
        "negative-binomial" =
          dnbinom(x[, q], size = 1 / at("a", k, d)[q], mu = m, log = TRUE))
    })
    rowSums(cells, na.rm = TRUE)
  })
}

monitored <- c("w", "z", switch(kind, categorical = "p", poisson = "m",
                                "negative-binomial" = c("m", "a"), c("m", "t")))
chains <- lapply(seq_len(CHAINS), function(seed) {
  set.seed(seed)
  start <- list(z = sample(C, n, replace = TRUE), .RNG.name = "base::Mersenne-Twister",
                .RNG.seed = seed)
  sampler <- jags.model(textConnection(model), data, start, n.adapt = 500, quiet = TRUE)
  update(sampler, 500, progress.bar = "none")
  drawn <- jags.samples(sampler, monitored, DRAWS, progress.bar = "none")
  weights <- t(drawn$w[, , 1])
  values <- invariants(weights, function(draw) {
    density(function(name, k, size) {
      array(drawn[[name]], c(C, size, DRAWS))[k, , draw]
    })
  })
  cbind(values, occupied = apply(drawn$z[, , 1], 2, function(z) length(unique(z))))
})
report(jags.version(), chains)
