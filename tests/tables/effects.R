# R's figures for tests/tables/test_effects.py: Rscript tests/tables/effects.R > tests/tables/effects.json
# R 4.2, sandwich, brglm2, metafor, mice, mvtnorm (all in Debian), jsonlite.
suppressMessages({library(sandwich); library(brglm2); library(metafor); library(mice); library(mvtnorm)})

set.seed(1)
n <- 60
x <- round(cbind(age = rnorm(n), dose = rexp(n)), 3)
patient <- rep(1:20, each = 3)
eta <- 0.3 + 0.5 * x[, 1] - 0.8 * x[, 2]
rows <- data.frame(x, patient,
  days = round(eta + rnorm(n) * (0.5 + x[, 2]) + rep(rnorm(20), each = 3), 3),
  died = as.integer(runif(n) < plogis(eta)), visits = rpois(n, exp(eta)))

errors <- function(fit) {
  kinds <- c("HC0", "HC1", "HC2", "HC3")
  found <- lapply(kinds, function(kind) sqrt(diag(vcovHC(fit, kind))))
  names(found) <- kinds
  found <- lapply(c(list(none = sqrt(diag(vcov(fit)))), found,
    list(clusters = sqrt(diag(vcovCL(fit, rows$patient, type = "HC1"))))), unname)
  c(list(coef = unname(coef(fit))), found)
}
strict <- list(epsilon = 1e-15, maxit = 100)
fits <- list(
  linear = errors(lm(days ~ age + dose, rows)),
  logistic = errors(glm(died ~ age + dose, binomial, rows, control = strict)),
  poisson = errors(glm(visits ~ age + dose, poisson, rows, control = strict)))

# The largest |t| of correlated estimates: inclusion and exclusion of TVPACK's orthants.
box <- function(q, s, df) {
  signs <- as.matrix(expand.grid(rep(list(c(-1, 1)), nrow(s))))
  sum(apply(signs, 1, function(e) prod(e) *
    pmvt(rep(-Inf, nrow(s)), e * q, corr = s, df = df, algorithm = TVPACK(1e-14))))
}
quantiles <- function(s) sapply(c(0, 20, 5), function(df)
  uniroot(function(q) box(q, s, df) - 0.95, c(1.9, 4.5), tol = 1e-12)$root)
three <- matrix(c(1, .5, .2, .5, 1, .3, .2, .3, 1), 3)
two <- matrix(c(1, .8, .8, 1), 2)

# Classes that a column tells apart.
apart <- data.frame(dose = c(0, 0, 0, 0, 1, 1, 1, 1, 1), age = c(2, 4, 3, 5, 4, 1, 3, 2, 6),
  died = c(0, 0, 0, 0, 1, 1, 0, 1, 1))
firth <- glm(died ~ dose + age, binomial, apart, method = "brglmFit", type = "AS_mean",
  epsilon = 1e-12, maxit = 1000)

trials <- escalc("RR", ai = tpos, bi = tneg, ci = cpos, di = cneg, data = dat.bcg)
meta <- lapply(c("FE", "DL", "REML"), function(method) {
  fit <- rma(yi, vi, data = trials, method = method, test = if (method == "FE") "z" else "knha",
    control = list(threshold = 1e-13, maxiter = 1000))
  predicted <- predict(fit)
  list(coef = fit$beta[1], error = fit$se, p = fit$pval, low = fit$ci.lb, high = fit$ci.ub,
    tau2 = fit$tau2, q = fit$QE, q_p = fit$QEp, i2 = fit$I2 / 100,
    predicted = c(predicted$pi.lb, predicted$pi.ub))
})
names(meta) <- c("FE", "DL", "REML")

drawn <- list(q = c(1.2, 1.5, 0.9, 1.4, 1.1), u = c(0.20, 0.25, 0.22, 0.18, 0.24))
pooled <- pool.scalar(drawn$q, drawn$u, n = 40, k = 3)

cat(jsonlite::toJSON(list(
  rows = as.list(rows), fits = fits, max_t = list(three = quantiles(three), two = quantiles(two)),
  firth = list(rows = as.list(apart), coef = unname(coef(firth)), error = unname(sqrt(diag(vcov(firth))))),
  trials = list(coef = as.numeric(trials$yi), variance = as.numeric(trials$vi)), meta = meta,
  rubin = c(drawn, list(coef = pooled$qbar, variance = pooled$t, freedom = pooled$df))),
  digits = NA, auto_unbox = TRUE))
